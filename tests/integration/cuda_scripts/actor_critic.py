"""Reinforcement learning: actions are drawn, rewards come from the host."""

import argparse
from collections import namedtuple
from itertools import count

import numpy as np
import torch
from torch import nn, optim
from torch.distributions import Categorical
from torch.nn import functional as F  # noqa: N812

SavedAction = namedtuple("SavedAction", ["log_prob", "value"])
EPS = float(np.finfo(np.float32).eps)


class Cart:
    """A pole on a cart, which is pushed to the left or to the right."""

    def reset(self):
        self.state = np.array([0.01, -0.02, 0.03, 0.01])
        return self.state

    def step(self, action):
        _, speed, angle, turn = self.state
        push = 10.0 if action else -10.0
        weight = (push + 0.05 * turn**2 * np.sin(angle)) / 1.1
        turning = (9.8 * np.sin(angle) - np.cos(angle) * weight) / (
            0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1)
        )
        moving = weight - 0.05 * turning * np.cos(angle) / 1.1
        change = np.array([speed, moving, turn, turning])
        self.state = self.state + 0.02 * change
        is_done = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21
        return self.state, 1.0, bool(is_done)


class Policy(nn.Module):
    def __init__(self, hidden=256):
        super().__init__()
        self.affine1 = nn.Linear(4, hidden)
        self.affine2 = nn.Linear(hidden, hidden)
        self.affine3 = nn.Linear(hidden, hidden)
        self.action_head = nn.Linear(hidden, 2)
        self.value_head = nn.Linear(hidden, 1)
        self.saved_actions, self.rewards = [], []

    def forward(self, x):
        x = F.relu(self.affine1(x))
        x = F.relu(self.affine3(F.relu(self.affine2(x))))
        return F.softmax(self.action_head(x), dim=-1), self.value_head(x)


def select_action(model, state, device):
    state = torch.from_numpy(state).float().to(device)
    probs, state_value = model(state)
    m = Categorical(probs)
    action = m.sample()
    model.saved_actions.append(SavedAction(m.log_prob(action), state_value))
    return action.item()


def finish_episode(model, optimizer, device, gamma):
    r, returns = 0.0, []
    for reward in model.rewards[::-1]:
        r = reward + gamma * r
        returns.insert(0, r)
    returns = torch.tensor(returns, device=device)
    returns = (returns - returns.mean()) / (returns.std() + EPS)
    policy_losses, value_losses = [], []
    for (log_prob, value), r in zip(model.saved_actions, returns, strict=True):
        advantage = r - value.item()
        policy_losses.append(-log_prob * advantage)
        target = torch.tensor([r], device=device)
        value_losses.append(F.smooth_l1_loss(value, target))
    optimizer.zero_grad()
    loss = torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()
    loss.backward()
    optimizer.step()
    model.rewards.clear()
    model.saved_actions.clear()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--seed", type=int, default=543)
    parser.add_argument("--episodes", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    env = Cart()
    model = Policy().to(device)
    optimizer = optim.Adam(model.parameters(), lr=3e-2)
    running_reward = 10
    for i_episode in range(args.episodes):
        state, ep_reward = env.reset(), 0
        for t in count(1):
            action = select_action(model, state, device)
            state, reward, done = env.step(action)
            model.rewards.append(reward)
            ep_reward += reward
            if done or t == 40:
                break
        running_reward = 0.05 * ep_reward + (1 - 0.05) * running_reward
        loss = finish_episode(model, optimizer, device, args.gamma)
        print(f"Episode {i_episode} {ep_reward} {running_reward!r} {loss!r}")


if __name__ == "__main__":
    main()
