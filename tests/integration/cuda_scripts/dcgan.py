"""Two networks against each other, with `.cuda()` all over."""

import torch
from torch import nn, optim
from torch.backends import cudnn

NZ, NGF, NDF, NC = 32, 32, 32, 3
cuda = torch.cuda.is_available()


def weights_init(m):
    name = m.__class__.__name__
    if name.find("Conv") != -1:
        torch.nn.init.normal_(m.weight, 0.0, 0.02)
    elif name.find("BatchNorm") != -1:
        torch.nn.init.normal_(m.weight, 1.0, 0.02)
        torch.nn.init.zeros_(m.bias)


def generator():
    return nn.Sequential(
        nn.ConvTranspose2d(NZ, NGF * 4, 4, 1, 0, bias=False),
        nn.BatchNorm2d(NGF * 4),
        nn.ReLU(True),
        nn.ConvTranspose2d(NGF * 4, NGF * 2, 4, 2, 1, bias=False),
        nn.BatchNorm2d(NGF * 2),
        nn.ReLU(True),
        nn.ConvTranspose2d(NGF * 2, NGF, 4, 2, 1, bias=False),
        nn.BatchNorm2d(NGF),
        nn.ReLU(True),
        nn.ConvTranspose2d(NGF, NC, 4, 2, 1, bias=False),
        nn.Tanh(),
    )


def discriminator():
    return nn.Sequential(
        nn.Conv2d(NC, NDF, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(NDF, NDF * 2, 4, 2, 1, bias=False),
        nn.BatchNorm2d(NDF * 2),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(NDF * 2, 1, 8, 1, 0, bias=False),
        nn.Sigmoid(),
        nn.Flatten(0),
    )


torch.manual_seed(7)
cudnn.benchmark = True
netG, netD = generator(), discriminator()  # noqa: N816
netG.apply(weights_init)
netD.apply(weights_init)
criterion = nn.BCELoss()
fixed_noise = torch.randn(8, NZ, 1, 1)
images = torch.rand(3, 8, NC, 32, 32) * 2 - 1
if cuda:
    netG.cuda()
    netD.cuda()
    criterion = criterion.cuda()
    fixed_noise = fixed_noise.cuda()
optimizerD = optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))  # noqa: N816
optimizerG = optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))  # noqa: N816

for real in images:
    if cuda:
        real = real.cuda(non_blocking=True)
    device = real.device
    netD.zero_grad()
    label = torch.full((8,), 1.0, dtype=real.dtype, device=device)
    errD_real = criterion(netD(real), label)  # noqa: N816
    errD_real.backward()
    noise = torch.randn(8, NZ, 1, 1, device="cuda" if cuda else "cpu")
    fake = netG(noise)
    label.fill_(0.0)
    errD_fake = criterion(netD(fake.detach()), label)  # noqa: N816
    errD_fake.backward()
    optimizerD.step()
    netG.zero_grad()
    label.fill_(1.0)
    errG = criterion(netD(fake), label)  # noqa: N816
    errG.backward()
    optimizerG.step()
    print((errD_real + errD_fake).item(), errG.item())
with torch.no_grad():
    print(netG(fixed_noise).double().mean().item())
print(sum(p.detach().cpu().double().sum().item() for p in netD.parameters()))
