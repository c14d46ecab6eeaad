"""Recurrent encoder and decoder with attention; sentences of each length."""

import random

import torch
from torch import nn, optim
from torch.nn import functional as F  # noqa: N812

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SOS_token, EOS_token, MAX_LENGTH, WORDS = 0, 1, 8, 200


class EncoderRNN(nn.Module):
    def __init__(self, input_size, hidden_size, dropout_p=0.1):
        super().__init__()
        self.embedding = nn.Embedding(input_size, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size, batch_first=True)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, words):
        return self.gru(self.dropout(self.embedding(words)))


class BahdanauAttention(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.Wa = nn.Linear(hidden_size, hidden_size)
        self.Ua = nn.Linear(hidden_size, hidden_size)
        self.Va = nn.Linear(hidden_size, 1)

    def forward(self, query, keys):
        scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys)))
        weights = F.softmax(scores.squeeze(2).unsqueeze(1), dim=-1)
        return torch.bmm(weights, keys), weights


class AttnDecoderRNN(nn.Module):
    def __init__(self, hidden_size, output_size, dropout_p=0.1):
        super().__init__()
        self.embedding = nn.Embedding(output_size, hidden_size)
        self.attention = BahdanauAttention(hidden_size)
        self.gru = nn.GRU(2 * hidden_size, hidden_size, batch_first=True)
        self.out = nn.Linear(hidden_size, output_size)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, encoder_outputs, encoder_hidden, target_tensor=None):
        size = encoder_outputs.size(0)
        word = torch.empty(size, 1, dtype=torch.long, device=device)
        word = word.fill_(SOS_token)
        hidden, outputs = encoder_hidden, []
        for i in range(MAX_LENGTH):
            output, hidden = self.forward_step(word, hidden, encoder_outputs)
            outputs.append(output)
            if target_tensor is not None:
                word = target_tensor[:, i].unsqueeze(1)
            else:
                _, topi = output.topk(1)
                word = topi.squeeze(-1).detach()
        return F.log_softmax(torch.cat(outputs, dim=1), dim=-1)

    def forward_step(self, word, hidden, encoder_outputs):
        embedded = self.dropout(self.embedding(word))
        query = hidden.permute(1, 0, 2)
        context, _ = self.attention(query, encoder_outputs)
        output, hidden = self.gru(torch.cat((embedded, context), dim=2), hidden)
        return self.out(output), hidden


def evaluate(encoder, decoder, sentence):
    with torch.no_grad():
        encoder_outputs, encoder_hidden = encoder(sentence)
        decoded = decoder(encoder_outputs, encoder_hidden)
        _, topi = decoded.topk(1)
        words = []
        for idx in topi.squeeze():
            if idx.item() == EOS_token:
                words.append("<EOS>")
                break
            words.append(idx.item())
    return words


def main():
    torch.manual_seed(4)
    random.seed(4)
    pairs = torch.full((2, 48, MAX_LENGTH), EOS_token)
    for side in pairs:
        for row in side:
            length = random.randint(3, MAX_LENGTH - 1)
            row[:length] = torch.randint(2, WORDS, (length,))
    data = torch.utils.data.TensorDataset(*(side.to(device) for side in pairs))
    loader = torch.utils.data.DataLoader(data, batch_size=16)
    encoder = EncoderRNN(WORDS, 128).to(device)
    decoder = AttnDecoderRNN(128, WORDS).to(device)
    encoder_optimizer = optim.Adam(encoder.parameters(), lr=0.001)
    decoder_optimizer = optim.Adam(decoder.parameters(), lr=0.001)
    criterion = nn.NLLLoss()
    for epoch in range(2):
        total_loss = 0
        for input_tensor, target_tensor in loader:
            encoder_optimizer.zero_grad()
            decoder_optimizer.zero_grad()
            encoder_outputs, encoder_hidden = encoder(input_tensor)
            outputs = decoder(encoder_outputs, encoder_hidden, target_tensor)
            loss = criterion(
                outputs.view(-1, outputs.size(-1)), target_tensor.view(-1)
            )
            loss.backward()
            encoder_optimizer.step()
            decoder_optimizer.step()
            total_loss += loss.item()
        print(epoch, total_loss / len(loader))
    encoder.eval()
    decoder.eval()
    print(evaluate(encoder, decoder, pairs[0][:1].to(device)))


if __name__ == "__main__":
    main()
