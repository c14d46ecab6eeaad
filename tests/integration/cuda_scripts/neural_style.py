"""A transformer of images under a frozen VGG: Gram matrices, checkpoints."""

import argparse
import os

import torch
import torchvision
from torch import nn
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset


class Vgg16(nn.Module):
    def __init__(self):
        super().__init__()
        features = torchvision.models.vgg16(weights=None).features
        self.slice1 = nn.Sequential(*features[:4])
        self.slice2 = nn.Sequential(*features[4:9])
        self.slice3 = nn.Sequential(*features[9:16])
        for param in self.parameters():
            param.requires_grad = False

    def forward(self, x):
        relu1 = self.slice1(x)
        relu2 = self.slice2(relu1)
        return relu1, relu2, self.slice3(relu2)


class ConvLayer(nn.Module):
    def __init__(self, ins, outs, kernel, stride=1, upsample=None):
        super().__init__()
        self.upsample = upsample
        self.reflection_pad = nn.ReflectionPad2d(kernel // 2)
        self.conv2d = nn.Conv2d(ins, outs, kernel, stride)

    def forward(self, x):
        if self.upsample:
            x = nn.functional.interpolate(
                x, mode="nearest", scale_factor=self.upsample
            )
        return self.conv2d(self.reflection_pad(x))


class ResidualBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = ConvLayer(channels, channels, 3)
        self.in1 = nn.InstanceNorm2d(channels, affine=True)
        self.conv2 = ConvLayer(channels, channels, 3)
        self.in2 = nn.InstanceNorm2d(channels, affine=True)

    def forward(self, x):
        out = torch.relu(self.in1(self.conv1(x)))
        return self.in2(self.conv2(out)) + x


def transformer_net():
    return nn.Sequential(
        ConvLayer(3, 16, 9),
        nn.InstanceNorm2d(16, affine=True),
        nn.ReLU(),
        ConvLayer(16, 32, 3, stride=2),
        nn.InstanceNorm2d(32, affine=True),
        nn.ReLU(),
        ResidualBlock(32),
        ResidualBlock(32),
        ConvLayer(32, 16, 3, upsample=2),
        nn.InstanceNorm2d(16, affine=True),
        nn.ReLU(),
        ConvLayer(16, 3, 9),
    )


def gram_matrix(y):
    (b, ch, h, w) = y.size()
    features = y.view(b, ch, w * h)
    return features.bmm(features.transpose(1, 2)) / (ch * h * w)


def normalize_batch(batch):
    mean = batch.new_tensor([0.485, 0.456, 0.406]).view(-1, 1, 1)
    std = batch.new_tensor([0.229, 0.224, 0.225]).view(-1, 1, 1)
    return batch.div_(255.0).sub(mean) / std


def train(args):
    device = torch.device("cuda" if args.cuda else "cpu")
    torch.manual_seed(42)
    draws = torch.Generator().manual_seed(8)
    images = torch.rand(8, 3, 32, 32, generator=draws).mul(255)
    train_loader = DataLoader(TensorDataset(images), batch_size=2)
    transformer = transformer_net().to(device)
    optimizer = Adam(transformer.parameters(), 1e-3)
    mse_loss = nn.MSELoss()
    vgg = Vgg16().to(device)
    style = images[:1].repeat(2, 1, 1, 1).to(device)
    gram_style = [gram_matrix(y) for y in vgg(normalize_batch(style))]
    for batch_id, (x,) in enumerate(train_loader):
        optimizer.zero_grad()
        x = x.to(device)
        y = normalize_batch(transformer(x))
        x = normalize_batch(x)
        features_y, features_x = vgg(y), vgg(x)
        content_loss = 1e5 * mse_loss(features_y[1], features_x[1])
        style_loss = 0.0
        for ft_y, gm_s in zip(features_y, gram_style, strict=True):
            style_loss += mse_loss(gram_matrix(ft_y), gm_s[: len(x)])
        style_loss *= 1e10
        total_loss = content_loss + style_loss
        total_loss.backward()
        optimizer.step()
        print(content_loss.item(), style_loss.item(), total_loss.item())
        if batch_id % 2 == 1:
            transformer.eval().cpu()
            path = os.path.join(args.checkpoint_dir, f"ckpt_{batch_id}.pth")
            torch.save(transformer.state_dict(), path)
            transformer.to(device).train()


if __name__ == "__main__":
    reader = argparse.ArgumentParser()
    reader.add_argument("--cuda", type=int, default=-1)
    reader.add_argument("--checkpoint-dir", default="checkpoints")
    args = reader.parse_args()
    if args.cuda == -1:
        args.cuda = torch.cuda.is_available()
    os.makedirs(args.checkpoint_dir, exist_ok=True)
    train(args)
