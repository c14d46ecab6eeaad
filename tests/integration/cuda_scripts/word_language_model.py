"""A recurrent language model: tied weights, hidden state, clipped gradients."""

import argparse
import io
import math

import torch
from torch import nn


class RNNModel(nn.Module):
    def __init__(self, ntoken, nhid, nlayers, dropout=0.2):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, nhid)
        self.rnn = nn.LSTM(nhid, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        self.nhid, self.nlayers, self.ntoken = nhid, nlayers, ntoken

    def forward(self, tokens, hidden):
        emb = self.drop(self.encoder(tokens))
        output, hidden = self.rnn(emb, hidden)
        decoded = self.decoder(self.drop(output)).view(-1, self.ntoken)
        return nn.functional.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        shape = self.nlayers, bsz, self.nhid
        return weight.new_zeros(shape), weight.new_zeros(shape)


def batchify(data, bsz, device):
    nbatch = data.size(0) // bsz
    data = data.narrow(0, 0, nbatch * bsz)
    return data.view(bsz, -1).t().contiguous().to(device)


def get_batch(source, i, bptt):
    seq_len = min(bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


def evaluate(model, source, criterion, bptt):
    model.eval()
    total = 0.0
    hidden = model.init_hidden(source.size(1))
    with torch.no_grad():
        for i in range(0, source.size(0) - 1, bptt):
            data, targets = get_batch(source, i, bptt)
            output, hidden = model(data, hidden)
            hidden = repackage_hidden(hidden)
            total += len(data) * criterion(output, targets).item()
    return total / (len(source) - 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuda", action="store_true", default=True)
    parser.add_argument("--bptt", type=int, default=12)
    args = parser.parse_args()
    torch.manual_seed(1111)
    use_cuda = args.cuda and torch.cuda.is_available()
    device = torch.device("cuda") if use_cuda else torch.device("cpu")
    ntokens = 400
    tokens = torch.randint(0, ntokens, (8 * 50,))
    train_data = batchify(tokens, 8, device)
    val_data = batchify(tokens[:160], 4, device)
    model = RNNModel(ntokens, 128, 5).to(device)
    criterion = nn.NLLLoss()
    lr, best, saved = 20.0, None, None
    for _ in range(2):
        model.train()
        hidden = model.init_hidden(8)
        for i in range(0, train_data.size(0) - 1, args.bptt):
            data, targets = get_batch(train_data, i, args.bptt)
            model.zero_grad()
            hidden = repackage_hidden(hidden)
            output, hidden = model(data, hidden)
            loss = criterion(output, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-lr)
            print("loss", loss.item(), "ppl", math.exp(loss.item()))
        val_loss = evaluate(model, val_data, criterion, args.bptt)
        print("valid", val_loss)
        if best is None or val_loss < best:
            saved, best = io.BytesIO(), val_loss
            torch.save(model, saved)
        else:
            lr /= 4.0
    saved.seek(0)
    model = torch.load(saved, weights_only=False)
    model.rnn.flatten_parameters()
    print("test", evaluate(model, val_data, criterion, args.bptt))


if __name__ == "__main__":
    main()
