"""A graph network whose adjacency is sparse, with masks for its nodes."""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import Adam

NODES, FEATURES, CLASSES = 500, 300, 7


class GraphConv(nn.Module):
    def __init__(self, input_dim, output_dim):
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(input_dim, output_dim))
        self.bias = nn.Parameter(torch.zeros(output_dim))
        nn.init.xavier_normal_(self.kernel)

    def forward(self, input_tensor, adj_mat):
        support = torch.mm(input_tensor, self.kernel)
        return torch.spmm(adj_mat, support) + self.bias


class GCN(nn.Module):
    def __init__(self, hidden_dim, dropout_p=0.1):
        super().__init__()
        self.gc1 = GraphConv(FEATURES, hidden_dim)
        self.gc2 = GraphConv(hidden_dim, hidden_dim)
        self.gc3 = GraphConv(hidden_dim, CLASSES)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, input_tensor, adj_mat):
        x = self.dropout(F.relu(self.gc1(input_tensor, adj_mat)))
        x = self.dropout(F.relu(self.gc2(x, adj_mat)))
        return F.log_softmax(self.gc3(x, adj_mat), dim=1)


def load_graph(device):
    draws = torch.Generator().manual_seed(4)
    edges = torch.randint(0, NODES, (2, 4 * NODES), generator=draws)
    loops = torch.arange(NODES).repeat(2, 1)
    edges = torch.cat([edges, edges.flip(0), loops], 1).unique(dim=1)
    degrees = torch.zeros(NODES).index_add(
        0, edges[0], torch.ones(edges.shape[1])
    )
    scale = degrees.pow(-0.5)
    adj_mat = torch.sparse_coo_tensor(
        edges, scale[edges[0]] * scale[edges[1]], (NODES, NODES)
    )
    features = torch.rand(NODES, FEATURES, generator=draws)
    features = features / features.sum(1, keepdim=True)
    labels = torch.randint(0, CLASSES, (NODES,), generator=draws)
    return features.to(device), labels.to(device), adj_mat.to(device)


def train_iter(epoch, model, optimizer, criterion, data, mask):
    begin = time.time()
    model.train()
    optimizer.zero_grad()
    features, target, adj_mat = data
    output = model(features, adj_mat)
    loss = criterion(output[mask[0]], target[mask[0]])
    loss.backward()
    optimizer.step()
    loss_val, acc_val = test(model, criterion, data, mask[1])
    assert time.time() >= begin
    print(f"Epoch: {epoch:04d} loss_train: {loss.item()!r}", loss_val, acc_val)


def test(model, criterion, data, mask):
    model.eval()
    features, target, adj_mat = data
    with torch.no_grad():
        output = model(features, adj_mat)[mask]
        loss = criterion(output, target[mask])
        acc = (output.argmax(dim=1) == target[mask]).float().mean()
    return loss.item(), acc.item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--hidden-dim", type=int, default=300)
    parser.add_argument("--no-accel", action="store_true")
    args = parser.parse_args()
    use_accel = not args.no_accel and torch.accelerator.is_available()
    device = torch.accelerator.current_accelerator() if use_accel else "cpu"
    torch.manual_seed(42)
    data = load_graph(device)
    idx = torch.randperm(NODES).to(device)
    masks = idx[:200], idx[200:300], idx[300:]
    model = GCN(args.hidden_dim).to(device)
    optimizer = Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    criterion = nn.NLLLoss()
    for epoch in range(args.epochs):
        train_iter(epoch + 1, model, optimizer, criterion, data, masks[:2])
    print("Test", *test(model, criterion, data, masks[2]))
