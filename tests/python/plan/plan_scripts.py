"""Small trainings of the kinds that read values, or whose sizes depend on them.

Each is the text of a script that says "cuda". Beside it stand what `--share`
says of its data, and where the whole script runs: with values on the CPU, or,
where CUDA's kernels take memory that the CPU's do not, on a simulated card.
"""

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
device = "cuda"
"""

# Reads a loss, a norm and how often it was right.
LOGS = """
net = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))
net = net.to(device)
optimizer = torch.optim.AdamW(net.parameters())
right = seen = 0
for step in range(12):
    x = torch.randn(2048, 256, device=device)
    y = torch.randint(10, (2048,), device=device)
    out = net(x)
    loss = F.cross_entropy(out, y)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    right += (out.argmax(-1) == y).sum().item()
    seen += len(y)
    print(loss.item(), float(norm), right / seen)
assert 0 <= right / seen <= 1
"""

# Validates after each epoch, and keeps the best.
VALIDATES = """
net = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(),
                    nn.LazyLinear(10)).to(device)
net(torch.zeros(1, 3, 32, 32, device=device))
optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
data = torch.utils.data.TensorDataset(torch.randn(512, 3, 32, 32),
                                      torch.randint(10, (512,)))
loader = torch.utils.data.DataLoader(data, 128)
best = float("inf")
for epoch in range(3):
    net.train()
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(net(x.to(device)), y.to(device)).backward()
        optimizer.step()
    net.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            total += F.cross_entropy(net(x.to(device)), y.to(device)).item()
    if total / len(loader) < best:
        best = total / len(loader)
        torch.save(net.state_dict(), "best.pt")
"""

# Goes on from a checkpoint that it wrote.
RESUMES = """
import os
def make():
    net = nn.Linear(512, 512).to(device)
    return net, torch.optim.AdamW(net.parameters())
def train(net, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(1024, 512, device=device)).square().mean().backward()
        optimizer.step()
net, optimizer = make()
train(net, optimizer, 1)
torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()},
           "last.pt")
del net, optimizer
net, optimizer = make()
state = torch.load("last.pt", map_location=device)
net.load_state_dict(state["net"])
optimizer.load_state_dict(state["optimizer"])
del state
train(net, optimizer, 10)
"""

EXPERTS = """
experts, k, tokens, width = 8, 2, 2048, 128
gate = nn.Linear(width, experts).to(device)
mlps = nn.ModuleList(nn.Sequential(nn.Linear(width, 512), nn.ReLU(),
                                   nn.Linear(512, width))
                     for _ in range(experts)).to(device)
optimizer = torch.optim.SGD([*gate.parameters(), *mlps.parameters()], 0.1)
for step in range(10):
    x = torch.randn(tokens, width, device=device)
    weights, top = gate(x).softmax(-1).topk(k)
    out = torch.zeros_like(x)
    {}
    (out - x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

ROUTES_BY_WHERE = EXPERTS.format("""
    for e, mlp in enumerate(mlps):
        token, slot = torch.where(top == e)
        if token.numel() == 0:
            continue
        out = out.index_add(
            0, token, mlp(x[token]) * weights[token, slot, None])
""")

ROUTES_BY_COUNTS = EXPERTS.format("""
    flat = top.view(-1)
    order = flat.argsort()
    counts = flat.bincount(minlength=experts).tolist()
    assert sum(counts) == tokens * k
    parts = x[order // k].split(counts)
    done = torch.cat([mlp(part) for mlp, part in zip(mlps, parts)])
    out = out.index_add(0, order // k, done * weights.view(-1)[order, None])
""")

ROUTES_AS_MIXTRAL = EXPERTS.format("""
    mask = F.one_hot(top, num_classes=experts).permute(2, 1, 0)
    for e in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
        slot, token = torch.where(mask[e].squeeze(0))
        mlp = mlps[int(e) % experts]
        out = out.index_add(
            0, token, mlp(x[token]) * weights[token, slot, None])
""")

# A masked language model: the loss of 15 % of the tokens.
MASKS = """
net = nn.Sequential(nn.Embedding(5000, 256), nn.Linear(256, 256)).to(device)
head = nn.Linear(256, 5000).to(device)
optimizer = torch.optim.AdamW([*net.parameters(), *head.parameters()])
for step in range(10):
    ids = torch.randint(5000, (16, 256), device=device)
    mask = torch.rand(ids.shape, device=device) < 0.15
    hidden = net(ids.masked_fill(mask, 3))
    loss = F.cross_entropy(head(hidden[mask]), ids[mask])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

# Works on the nodes of a batch once, however often they are in it.
UNIQUE = """
table = nn.Embedding(2000, 256).to(device)
net = nn.Linear(256, 1024).to(device)
optimizer = torch.optim.SGD([*table.parameters(), *net.parameters()], 0.1)
edges = torch.randint(2000, (2, 100_000)).to(device)
for step in range(10):
    nodes, place = torch.unique(edges[:, :8192], return_inverse=True)
    hidden = net(table(nodes))
    (hidden[place[0]] * hidden[place[1]]).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

SCALES = """
net = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).to(device)
optimizer = torch.optim.AdamW(net.parameters())
scaler = torch.amp.GradScaler("cuda")
for step in range(10):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = net(torch.randn(1024, 512, device=device)).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""

STOPS_EARLY = """
net = nn.Linear(512, 512).to(device)
optimizer = torch.optim.Adam(net.parameters())
best, patience = float("inf"), 0
for epoch in range(40):
    for _ in range(2):
        optimizer.zero_grad()
        loss = net(torch.randn(1024, 512, device=device)).square().mean()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        held = net(torch.randn(256, 512, device=device)).square().mean()
    if held < best:
        best, patience = held.item(), 0
    else:
        patience += 1
    if patience > 5:
        break
"""

# Checks what it computes, in the ways that scripts do.
CHECKS = """
net = nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256)).to(device)
optimizer = torch.optim.AdamW(net.parameters())
skipped = 0
for step in range(10):
    optimizer.zero_grad()
    y = torch.randint(256, (1024,), device=device)
    assert (y >= 0).all() and y.max() < 256
    out = net(torch.randn(1024, 256, device=device))
    assert torch.isfinite(out).all(), "not finite"
    assert not torch.isnan(out).any()
    assert torch.allclose(out, out)
    loss = F.cross_entropy(out, y)
    if not torch.isfinite(loss):
        skipped += 1
        continue
    if torch.isnan(loss) or torch.isinf(loss):
        raise FloatingPointError("loss")
    loss.backward()
    norms = torch.stack([p.grad.norm() for p in net.parameters()])
    if (norms <= 0).any() or not (norms < 1e6).all():
        raise ValueError(f"gradients: {norms.tolist()}")
    if torch.isfinite(norms).all():
        optimizer.step()
assert not skipped
"""

# The harder half of the examples.
MINES = """
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
second = nn.Sequential(nn.Linear(64, 2048), nn.Linear(2048, 1)).to(device)
optimizer = torch.optim.SGD([*net.parameters(), *second.parameters()], 0.01)
for step in range(10):
    x = torch.randn(4096, 64, device=device)
    first = net(x).square()
    hard = first.squeeze(1) > first.detach().median()
    loss = first.mean() + second(x[hard]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

SCRIPTS = {
    "logs": (LOGS, 1.0, "cpu"),
    "validates": (VALIDATES, 1.0, "cpu"),
    "resumes": (RESUMES, 1.0, "cpu"),
    "routes-by-where": (ROUTES_BY_WHERE, 1.0, "cpu"),
    "routes-by-counts": (ROUTES_BY_COUNTS, 1.0, "cpu"),
    "routes-as-mixtral": (ROUTES_AS_MIXTRAL, 1.0, "cpu"),
    "masks": (MASKS, 1.0, "cpu"),
    "unique": (UNIQUE, 0.12, "cpu"),
    "scales": (SCALES, 1.0, "simulated"),
    "stops-early": (STOPS_EARLY, 1.0, "cpu"),
    "checks": (CHECKS, 1.0, "cpu"),
    "mines": (MINES, 0.5, "cpu"),
}
