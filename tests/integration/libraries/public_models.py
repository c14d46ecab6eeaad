"""Models that nobody here wrote, in tiny configurations, and their trainings.

Nothing is downloaded: models come from configurations, images from
scikit-learn's digits, text from this repository, tokens from a seed.
"""

import math
import os
import warnings

import torch
from support import ROOT
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import lr_scheduler, swa_utils
from trainings import Record, adamw, digits

os.environ["HF_HUB_OFFLINE"] = "1"  # transformers would ask for updates

import timm
import transformers
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import (
    FasterRCNN,
    FastRCNNPredictor,
    TwoMLPHead,
)
from torchvision.ops import MultiScaleRoIAlign

MODELS = {}


def model(function):
    """Registers a training: a function of a device and a number of steps."""
    MODELS[function.__name__] = function
    return function


def train(net, optimizer, losses, schedule=None, clip=None, average=None):
    """Takes a step for each loss and returns everything that it leaves.

    `losses` yields after the forward pass of each step.
    """
    record = Record()
    for loss in losses:
        record.loss(loss)
        optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            norm = nn.utils.clip_grad_norm_(
                net.parameters(), clip, foreach=True
            )
            record.loss(norm)
        optimizer.step()
        if schedule is not None:
            schedule.step()
        if average is not None:
            average.update_parameters(net)
    tensors = record.state(net, optimizer)
    if average is not None:
        for name, value in average.state_dict().items():
            tensors[f"average.{name}"] = value.cpu()
    return tensors


# ---- language models

VOCABULARY = 256


def bytes_of_text(steps, batch, tokens):
    """Rows of bytes of this repository's front page."""
    text = (ROOT / "README.md").read_bytes()
    needed = steps * batch * tokens
    text = text * math.ceil(needed / len(text))
    rows = torch.tensor(list(text[:needed])).view(steps, batch, tokens)
    return list(rows)


def language_model(kind, config, device, steps, prepare=None, **how):
    torch.manual_seed(0)
    net = kind(config).train()
    if prepare is not None:
        prepare(net)
    net.to(device)
    optimizer = adamw(net)
    schedule = transformers.get_cosine_schedule_with_warmup(optimizer, 2, 20)

    def losses():
        for row in bytes_of_text(steps, 4, 32):
            tokens = row.to(device)
            yield net(input_ids=tokens, labels=tokens).loss

    return train(net, optimizer, losses(), schedule, clip=1.0, **how)


def gpt2_config(**changes):
    return transformers.GPT2Config(
        vocab_size=VOCABULARY,
        bos_token_id=0,
        eos_token_id=0,
        n_positions=64,
        n_embd=64,
        n_layer=3,
        n_head=4,
        **changes,
    )


def llama_config(**changes):
    return transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attention_dropout=0.1,
        **changes,
    )


@model
def gpt2_eager(device, steps):
    config = gpt2_config(attn_implementation="eager")
    return language_model(transformers.GPT2LMHeadModel, config, device, steps)


@model
def gpt2_sdpa(device, steps):
    config = gpt2_config(attn_implementation="sdpa")
    return language_model(transformers.GPT2LMHeadModel, config, device, steps)


@model
def llama_eager(device, steps):
    config = llama_config(attn_implementation="eager")
    return language_model(transformers.LlamaForCausalLM, config, device, steps)


@model
def llama_checkpointing(device, steps):
    """Activations are computed again in the backward pass."""
    config = llama_config(attn_implementation="sdpa", use_cache=False)

    def prepare(net):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of another name to come
            net.gradient_checkpointing_enable()
            assert net.is_gradient_checkpointing

    return language_model(
        transformers.LlamaForCausalLM, config, device, steps, prepare
    )


@model
def mixtral(device, steps):
    """A mixture of experts: which rows go where depends on the data."""
    config = transformers.MixtralConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=64,
        output_router_logits=True,
        experts_implementation="grouped_mm",
        attention_dropout=0.1,
    )
    return language_model(
        transformers.MixtralForCausalLM, config, device, steps
    )


@model
def bert(device, steps):
    """Masked tokens, rows of different lengths, an averaged model."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
    )
    net = transformers.BertForMaskedLM(config).train().to(device)
    optimizer = adamw(net)
    average = swa_utils.AveragedModel(
        net, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9)
    )
    draws = torch.Generator().manual_seed(1)

    def losses():
        for row in bytes_of_text(steps, 4, 32):
            masked = torch.rand(row.shape, generator=draws) < 0.15
            lengths = torch.randint(16, 33, (4, 1), generator=draws)
            yield net(
                input_ids=row.masked_fill(masked, 0).to(device),
                attention_mask=(torch.arange(32) < lengths).to(device),
                labels=row.masked_fill(~masked, -100).to(device),
            ).loss

    return train(net, optimizer, losses(), average=average)


@model
def t5(device, steps):
    """Encoder and decoder; Adafactor, which keeps factored statistics."""
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    net = transformers.T5ForConditionalGeneration(config).train().to(device)
    optimizer = torch.optim.Adafactor(net.parameters(), foreach=True)

    def losses():
        for row in bytes_of_text(steps, 4, 32):
            tokens = row.to(device)
            yield net(input_ids=tokens, labels=tokens.flip(1)).loss

    return train(net, optimizer, losses())


@model
def nn_transformer(device, steps):
    torch.manual_seed(0)
    embedding = nn.Embedding(VOCABULARY, 64)
    body = nn.Transformer(64, 4, 2, 2, 128, batch_first=True)
    head = nn.Linear(64, VOCABULARY)
    net = nn.ModuleList([embedding, body, head]).to(device)
    optimizer = torch.optim.NAdam(net.parameters(), 1e-3, foreach=True)
    schedule = lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=20)

    def losses():
        for row in bytes_of_text(steps, 4, 24):
            source = row.to(device)
            target = source.flip(1)
            mask = nn.Transformer.generate_square_subsequent_mask(
                23, device=device
            )
            decoded = body(
                embedding(source),
                embedding(target[:, :-1]),
                tgt_mask=mask,
                tgt_is_causal=True,
                src_key_padding_mask=source == 10,
            )
            yield F.cross_entropy(
                head(decoded).flatten(0, 1), target[:, 1:].flatten()
            )

    return train(net, optimizer, losses(), schedule, clip=0.5)


# ---- vision


def classification(net, batches, device, outputs=lambda y: y):
    for images, labels in batches:
        logits = outputs(net(images.to(device)))
        yield F.cross_entropy(logits, labels.to(device), label_smoothing=0.1)


@model
def vit(device, steps):
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=32,
        patch_size=8,
        num_labels=10,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )
    net = transformers.ViTForImageClassification(config).train().to(device)
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3, foreach=True)
    batches = digits(steps, 8, 32)
    losses = classification(net, batches, device, lambda y: y.logits)
    return train(net, optimizer, losses)


@model
def timm_convnext(device, steps):
    """Depth-wise convolutions, stochastic depth, channels last."""
    torch.manual_seed(0)
    net = timm.create_model(
        "convnext_atto", num_classes=10, drop_path_rate=0.2, drop_rate=0.1
    )
    net = net.to(device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.RAdam(net.parameters(), 1e-3, foreach=True)
    losses = classification(net, digits(steps, 4, 32), device)
    return train(net, optimizer, losses)


def scenes(steps):
    """Images with one to three bright rectangles: other shapes each time."""
    draws = torch.Generator().manual_seed(2)

    def number(low, high):
        return int(torch.randint(low, high, (), generator=draws))

    for _ in range(steps):
        images, targets = [], []
        for _ in range(2):
            height, width = number(48, 80), number(48, 80)
            image = torch.rand(3, height, width, generator=draws) * 0.2
            boxes, labels = [], []
            for _ in range(number(1, 4)):
                x, y = number(0, width - 20), number(0, height - 20)
                w, h = number(10, 20), number(10, 20)
                label = number(1, 4)
                image[label - 1, y : y + h, x : x + w] = 1
                boxes.append([x, y, x + w, y + h])
                labels.append(label)
            images.append(image)
            targets.append(
                {
                    "boxes": torch.tensor(boxes, dtype=torch.float32),
                    "labels": torch.tensor(labels),
                }
            )
        yield images, targets


@model
def faster_rcnn(device, steps):
    """Proposals, non-maximum suppression, regions: shapes follow the data."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU()]
    layers += [nn.Conv2d(16, 64, 3, 2, 1), nn.ReLU()]
    for stride in (2, 1, 1, 1, 1, 1, 1, 1):
        layers += [nn.Conv2d(64, 64, 3, stride, 1), nn.ReLU()]
    backbone = nn.Sequential(*layers)
    backbone.out_channels = 64
    net = FasterRCNN(
        backbone,
        box_head=TwoMLPHead(64 * 3 * 3, 64),
        box_predictor=FastRCNNPredictor(64, 4),
        rpn_anchor_generator=AnchorGenerator(((8, 16, 24),), ((0.5, 1, 2),)),
        box_roi_pool=MultiScaleRoIAlign(["0"], 3, 2),
        min_size=64,
        max_size=96,
        rpn_pre_nms_top_n_train=100,
        rpn_post_nms_top_n_train=50,
        # Fewer than 1,000 boxes: beyond, torchvision takes another way on
        # tensors of a device called "cpu" than on those of any other.
        rpn_pre_nms_top_n_test=100,
        rpn_post_nms_top_n_test=50,
        box_batch_size_per_image=32,
    ).to(device)
    optimizer = torch.optim.SGD(
        net.parameters(), 0.01, momentum=0.9, nesterov=True, foreach=True
    )

    def losses():
        for images, targets in scenes(steps):
            found = net(
                [image.to(device) for image in images],
                [{k: v.to(device) for k, v in t.items()} for t in targets],
            )
            yield sum(found.values())

    tensors = train(net, optimizer, losses(), clip=10.0)
    net.eval()
    (images, _), *_ = scenes(1)
    with torch.no_grad():
        for index, found in enumerate(net([i.to(device) for i in images])):
            for key, value in found.items():
                tensors[f"detection{index}.{key}"] = value.cpu()
    return tensors


# ---- other ways to train


@model
def gan(device, steps):
    """Two networks and two optimizers; transposed convolutions."""
    torch.manual_seed(0)
    layers = [nn.ConvTranspose2d(16, 64, 4), nn.BatchNorm2d(64), nn.ReLU()]
    for _ in range(2):
        layers += [nn.ConvTranspose2d(64, 64, 4, 2, 1), nn.ReLU()]
        for _ in range(6):
            layers += [nn.Conv2d(64, 64, 3, 1, 1), nn.Tanh()]
    layers += [nn.Conv2d(64, 1, 3, 1, 1), nn.Sigmoid()]
    generator = nn.Sequential(*layers).to(device)
    first = nn.utils.parametrizations.spectral_norm(nn.Conv2d(1, 16, 4, 2, 1))
    layers = [first, nn.LeakyReLU(0.2), nn.Dropout(0.2)]
    for _ in range(4):
        layers += [nn.Conv2d(16, 16, 3, 1, 1), nn.LeakyReLU(0.2)]
    layers += [nn.Flatten(), nn.Linear(1024, 1)]
    critic = nn.Sequential(*layers).to(device)
    makers = torch.optim.Adam(
        generator.parameters(), 2e-4, (0.5, 0.999), foreach=True
    )
    critics = torch.optim.Adam(
        critic.parameters(), 2e-4, (0.5, 0.999), foreach=True
    )
    record = Record()
    tell = F.binary_cross_entropy_with_logits
    for images, _ in digits(steps, 4, 16, channels=1):
        real = images.to(device)
        noise = torch.randn(4, 16, 1, 1, device=device)
        fake = generator(noise)
        ones = torch.ones(4, 1, device=device)

        critics.zero_grad()
        loss = tell(critic(real), ones) + tell(critic(fake.detach()), 0 * ones)
        loss.backward()
        critics.step()
        record.loss(loss)

        makers.zero_grad()
        loss = tell(critic(fake), ones)
        loss.backward()
        makers.step()
        record.loss(loss)
    record.state(critic, critics)
    critic_state, record.tensors = record.tensors, {}
    record.state(generator, makers)
    return {
        **{f"critic.{name}": value for name, value in critic_state.items()},
        **{f"maker.{name}": value for name, value in record.tensors.items()},
    }


@model
def lbfgs(device, steps):
    """The closure runs many times a step, under a line search."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 32), nn.Linear(32, 10)
    ).to(device)
    optimizer = torch.optim.LBFGS(
        net.parameters(), max_iter=4, line_search_fn="strong_wolfe"
    )
    (images, labels), *_ = digits(1, 64, 8, channels=1)
    images, labels = images.flatten(1).to(device), labels.to(device)
    record = Record()

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(net(images), labels)
        loss.backward()
        return loss

    for _ in range(steps):
        record.loss(optimizer.step(closure))
    state = optimizer.state[optimizer.param_groups[0]["params"][0]]
    tensors = record.state(net, optimizer)
    for name in ("old_dirs", "old_stps"):
        for index, value in enumerate(state[name]):
            tensors[f"{name}{index}"] = value.cpu()
    return tensors
