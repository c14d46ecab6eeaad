"""fully_shard under torchrun: meta device, mixed precision, checkpoints."""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

VOCABULARY, TOKENS, WIDTH, LAYERS = 128, 32, 64, 4


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        shape = *x.shape[:2], 4, -1
        q, k, v = (
            part.view(shape).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(x)))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def reset_parameters(self):
        for module in self.modules():
            if isinstance(module, (nn.Embedding, nn.Linear, nn.LayerNorm)):
                module.reset_parameters()

    def forward(self, x):
        x = self.tokens(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def sharded_model(mesh, options):
    with torch.device("meta"):
        model = Transformer()
    policy = {}
    if options.mixed_precision:
        policy["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **policy)
    return fully_shard(model, mesh=mesh, **policy)


def train(model, optimizer, device, seeds):
    for seed in seeds:
        draws = torch.Generator().manual_seed(seed)
        x = torch.randint(0, VOCABULARY, (8, TOKENS), generator=draws)
        x = x.to(device)
        logits = model(x).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, x.flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        norm = norm.full_tensor()
        print(f"loss {loss.item()!r} norm {norm.item()!r}")


def main(options):
    rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        device = torch.device(f"cuda:{rank}")
        torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl")
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    model = sharded_model(mesh, options)
    model.to_empty(device=device)
    model.reset_parameters()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(model, optimizer, device, range(3))

    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder, src=0)
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"m": weights, "o": state}, checkpoint_id=folder[0])
    again = sharded_model(mesh, options).to_empty(device=device)
    optimizer = torch.optim.AdamW(again.parameters(), lr=1e-3)
    weights, state = get_state_dict(again, optimizer)
    dcp.load({"m": weights, "o": state}, checkpoint_id=folder[0])
    set_state_dict(
        *(again, optimizer), model_state_dict=weights, optim_state_dict=state
    )
    train(again, optimizer, device, range(3, 5))
    whole = get_model_state_dict(
        again, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    if rank == 0:
        total = sum(value.double().sum() for value in whole.values())
        print(f"parameters {total.item()!r}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed-precision", action="store_true")
    main(parser.parse_args())
