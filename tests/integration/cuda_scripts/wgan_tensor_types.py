"""As networks were trained in 2018: typed tensors, Variables, `is_cuda`."""

import torch
from torch import nn
from torch.autograd import Variable

cuda = bool(torch.cuda.is_available())
Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor
torch.manual_seed(3)
if cuda:
    torch.cuda.manual_seed_all(3)

generator = nn.Sequential(
    nn.Linear(64, 128),
    nn.BatchNorm1d(128, 0.8),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Linear(128, 256),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Linear(256, 128),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Linear(128, 784),
    nn.Tanh(),
)
discriminator = nn.Sequential(
    nn.Linear(784, 128),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Linear(128, 256),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Linear(256, 128),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Linear(128, 1),
)
if cuda:
    generator.cuda()
    discriminator.cuda()
optimizer_g = torch.optim.RMSprop(generator.parameters(), lr=5e-4)
optimizer_d = torch.optim.RMSprop(discriminator.parameters(), lr=5e-4)
images = torch.rand(4, 32, 784)


for imgs in images:
    real = Variable(imgs.type(Tensor))
    assert real.is_cuda == cuda
    assert isinstance(real, Tensor)
    optimizer_d.zero_grad()
    z = Variable(Tensor(32, 64).normal_())
    fake = generator(z).detach()
    loss_d = -discriminator(real).mean() + discriminator(fake).mean()
    loss_d.backward()
    optimizer_d.step()
    for p in discriminator.parameters():
        p.data.clamp_(-0.01, 0.01)
    valid = Variable(Tensor(32, 1).fill_(1.0), requires_grad=False)
    optimizer_g.zero_grad()
    loss_g = -(discriminator(generator(z)) * valid).mean()
    loss_g.backward()
    optimizer_g.step()
    print(loss_d.item(), loss_g.item())
print(sum(p.data.cpu().double().sum().item() for p in generator.parameters()))
