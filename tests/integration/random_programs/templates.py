"""The forms of lines, by kind.

{A} {B} {C} are floating-point tensors, {X} any, {F2} {F3} {F4} ones of so many
dimensions, {I} integers, {T} one that may die, {L} {L2} lists of the same
shapes; {r} is a new name; {d} a dimension, {n} a small number, {f} a scalar,
{dt} a dtype, {shp} a shape of as many elements as {A} or {X}; {m} a task, {o}
its optimizer.
"""


def _lines(text):
    return [line.strip() for line in text.strip().splitlines()]


def _results(text):
    return ["{r} = " + line for line in _lines(text)]


_UNARY = """
    relu tanh sigmoid abs neg sin cos erf square sign round floor ceil trunc
    frac isnan isfinite logical_not nan_to_num positive exp expm1 log1p sqrt
    rsqrt reciprocal digamma lgamma signbit sgn angle clone
"""
UNARY = [f"{{r}} = torch.{name}({{A}})" for name in _UNARY.split()]

PURE = _results("""
    F.gelu({A})
    F.silu({A})
    F.softplus({A})
    F.leaky_relu({A}, 0.1)
    F.elu({A})
    F.hardtanh({A})
    F.softmax({A}, {d})
    F.log_softmax({A}, {d})
    F.glu({A}, {d})
    F.normalize({A}, dim={d})
    F.layer_norm({A}, {A}.shape[-1:])
    F.pad({A}, (1, 2))
    F.dropout({A}, 0.3)
    F.relu6({A})
    F.mish({A})
    torch.cumsum({A}, {d})
    torch.cumprod({A}.tanh(), {d})
    torch.sort({A}, {d})[0]
    torch.sort({A}, {d})[1]
    torch.topk({A}, 1, {d})[0]
    torch.argsort({A}, {d}, stable=True)
    torch.flip({A}, [{d}])
    torch.roll({A}, {n}, {d})
    torch.tril({A})
    torch.triu({A})
    torch.diag_embed({A})
    {A}.sum({d})
    {A}.mean({d}, keepdim=True)
    {A}.var({d}, correction=0)
    {A}.std({d})
    {A}.amax({d})
    {A}.max({d})[1]
    {A}.prod({d})
    {A}.norm()
    {A}.norm(dim={d})
    {A}.logsumexp({d})
    {A}.median({d})[0]
    {A}.mode({d})[0]
    {A}.kthvalue(1, {d})[0]
    {A}.clamp(-1, 1)
    {A}.clamp(min={f})
    {A}.pow(2)
    {A}.pow(3.0)
    {A}.to(torch.{dt})
    {A}.half()
    {A}.bfloat16()
    {A}.double()
    {A}.float()
    {A}.long()
    {A}.clone()
    {A}.contiguous()
    {A}.clone(memory_format=torch.preserve_format)
    {A} + {f}
    {A} * {f}
    {A} - {f}
    {A} / {f}
    {f} - {A}
    1 / ({A}.abs() + 1)
    {A} > {f}
    {A}.eq(0)
    {A} // 0.5
    {A} % 0.7
    {A}.sum()
    {A}.mean()
    {A}.max()
    {A}.argmax()
    {A}.any()
    {A}.all({d})
    {A}.count_nonzero()
    {A}.nonzero()
    torch.unique({A})
    {A}[{A} > 0]
    torch.histc({A}.float(), 5, -2, 2)
    {A}.nansum({d})
    {A}.repeat(2, *[1] * ({A}.dim() - 1))
    {A}.repeat_interleave(2, {d})
    {A}.tile(2)
    torch.bernoulli({A}.float().sigmoid())
    torch.rand_like({A})
    torch.randn_like({A})
    torch.zeros_like({A})
    torch.ones_like({A})
    torch.full_like({A}, {f})
    torch.randint_like({A}, 0, 9)
    {A}.diff(dim={d})
    {A}.cummax({d})[0]
    {A}.logcumsumexp({d})
    torch.renorm({A}, 2, {d}, 1.0)
    {A}.trace()
    torch.complex({A}, {A}.neg())
    torch.view_as_complex(torch.stack([{A}.float(), {A}.float()], -1))
    torch.fft.fft({A}.float())
    torch.fft.rfft({A}.float()).abs()
    {A}.new_zeros(3)
    {A}.new_full((2, 2), {f})
    {A}.new_tensor([1.0, 2.0])
    torch.multinomial({A}.float().softmax(-1), 2, True)
    {A}.float().quantile(0.3)
    torch.bucketize({A}, torch.tensor([-1.0, 0.0, 1.0]).to(D))
    torch.normal({A}, 1.0)
    torch.poisson({A}.abs())
    {A}.aminmax()[0]
    F.one_hot({A}.long().abs() % 5, 5)
    {A}.int().bitwise_and(3)
    torch.nextafter({A}, {A} + 1)
    torch.ldexp({A}, {A}.long() % 3)
    torch.trapz({A})
    torch.vander({A}.flatten()[:5])
""")

VIEWS = _results("""
    {X}.view(-1)
    {X}.reshape({shp})
    {X}.view({shp})
    {X}.t()
    {X}.transpose(0, -1)
    {X}.permute(*reversed(range({X}.dim())))
    {X}.narrow({d}, 0, 1)
    {X}.select({d}, 0)
    {X}[0]
    {X}[-1]
    {X}[::2]
    {X}[..., 1:]
    {X}[..., ::3]
    {X}[1:, ...]
    {X}[None]
    {X}[..., None]
    {X}.unsqueeze(0)
    {X}.squeeze()
    {X}.expand(3, *{X}.shape)
    {X}.unfold({d}, 2, 1)
    {X}.unfold({d}, 1, 2)
    {X}.diagonal()
    {X}.as_strided((2, 2), (1, 2))
    {X}.as_strided((3,), (0,), 1)
    {X}.as_strided((2, 3), (3, 1), {X}.storage_offset())
    {X}.chunk(2, {d})[-1]
    {X}.split(1, {d})[0]
    {X}.unbind({d})[-1]
    {X}.movedim(0, -1)
    {X}.view(torch.int32)
    {X}.view(torch.uint8)
    {X}.view(torch.float32)
    {X}.view(torch.int16)
    torch.view_as_real({X})
    {X}.real
    {X}.imag
    {X}.conj()
    {X}.mH
    {X}.mT
    {X}.flatten()
    {X}.unflatten(0, (1, -1))
    {X}.detach()
    {X}.view_as({X})
    {X}.expand_as({X})
    {X}.tensor_split(3, {d})[1]
    {X}.hsplit(1)[0]
    torch.atleast_2d({X})
    torch._neg_view({X})
    {X}.swapaxes(0, -1)
    {X}.data
    torch.broadcast_to({X}, (2, *{X}.shape))
    {X}.resolve_conj()
    {X}.adjoint()
""")

BINARY = _results("""
    {A} + {B}
    {A} - {B}
    {A} * {B}
    {A} / ({B}.abs() + 1)
    torch.maximum({A}, {B})
    torch.where({A} > 0, {A}, {B})
    torch.cat([{A}, {B}], {d})
    torch.stack([{A}, {B}], {d})
    torch.cat([{A}, {B}, {A}])
    torch.dot({A}.flatten(), {B}.flatten())
    torch.outer({A}.flatten()[:9], {B}.flatten()[:7])
    torch.addcmul({A}, {B}, {B}, value={f})
    torch.addcdiv({A}, {B}, {B}.abs() + 1)
    torch.lerp({A}, {B}, 0.3)
    torch.lerp({A}, {B}, {A})
    torch.copysign({A}, {B})
    torch.atan2({A}, {B})
    torch.hypot({A}, {B})
    {A} < {B}
    {A} == {B}
    torch.logical_xor({A}, {B})
    torch.add({A}, {B}, alpha=2)
    F.mse_loss({A}, {B})
    F.smooth_l1_loss({A}, {B}, reduction='none')
    F.binary_cross_entropy_with_logits({A}, {B}.sigmoid())
    F.cosine_similarity({A}, {B}, {d})
    torch.dist({A}, {B})
    torch.allclose({A}, {B})
    torch.equal({A}, {B})
    {A}.isclose({B})
    torch.fmod({A}, {B}.abs() + 0.5)
    torch.remainder({A}, {B}.abs() + 0.5)
    torch.xlogy({A}, {B}.abs())
    torch.heaviside({A}, {B})
    torch.addmm({F2}, {A}.flatten(1), {B}.flatten(1).t())
    torch.block_diag({F2}, {F2})
    torch.cartesian_prod({A}.flatten()[:4], {B}.flatten()[:3])
    torch.kron({F2}[:3, :3], {F2}[:2, :2])
    torch.searchsorted({A}.sort(-1)[0], {B})
    torch.masked_select({A}, {B} > 0)
    {A}.masked_fill({B} > 0, {f})
    torch.cross({A}.flatten()[:3], {B}.flatten()[:3], dim=0)
""")

PRODUCTS = _results("""
    {F2} @ {F2}.t()
    torch.mm({F2}, {G2})
    torch.matmul({F2}, {G2})
    torch.bmm({F3}, {F3}.transpose(1, 2))
    torch.einsum('ij,kj->ik', {F2}, {F2})
    torch.einsum('bij,bkj->bik', {F3}, {F3})
    torch.mv({F2}, {F2}[0])
    torch.addmv({F2}[:, 0], {F2}, {F2}[0])
    torch.baddbmm({F3}, {F3}, {F3})
    F.linear({F2}, {F2})
    torch.cdist({F2}, {F2})
    F.avg_pool2d({F4}, 2)
    F.max_pool2d({F4}, 2)
    F.max_pool2d({F4}, 2, return_indices=True)[1]
    F.conv2d({F4}, rnd((4, {F4}.shape[1], 3, 3), 7, {F4}.dtype), padding=1)
    F.conv_transpose2d({F4}, rnd(({F4}.shape[1], 2, 2, 2), 5, {F4}.dtype))
    {F4}.to(memory_format=torch.channels_last)
    {F4}.contiguous(memory_format=torch.channels_last)
    F.batch_norm({F4}, None, None, training=True)
    F.adaptive_avg_pool2d({F4}, 2)
    F.interpolate({F4}, scale_factor=2, mode='nearest')
    F.pixel_unshuffle({F4}, 2)
    F.unfold({F4}, 2)
    F.scaled_dot_product_attention({F3}, {F3}, {F3})
    F.scaled_dot_product_attention({F4}, {F4}, {F4}, is_causal=True)
    F.scaled_dot_product_attention({F4}, {F4}, {F4}, dropout_p=0.2)
    torch.linalg.vector_norm({F2}, 3)
    torch.linalg.det(({F2} @ {F2}.t())[:3, :3].float())
    torch.linalg.inv({F2}[:3, :3] + 40 * torch.eye(3, device=D))
    torch.tril_indices({F2}.shape[0], 3, device=D)
    F.embedding({I} % 3, {F2}[:3])
    F.embedding_bag(({I}.flatten() % 3)[None], {F2}[:3])
""")

INDEXING = _results("""
    {A}[{I} % {A}.shape[0]]
    {A}.index_select(0, {I}.flatten() % {A}.shape[0])
    torch.gather({A}, 0, torch.zeros_like({A}, dtype=torch.long))
    torch.take({A}, {I} % {A}.numel())
    {A}[..., [0, 0, -1]]
    {A}[[0], ...]
    {A}.scatter(0, torch.zeros_like({A}, dtype=torch.long), {f})
    {A}.scatter_add(0, torch.zeros_like({A}, dtype=torch.long), {A})
    {A}.index_add(0, {A}.new_zeros({A}.shape[0]).long(), {A})
    {A}.index_copy(0, torch.arange({A}.shape[0]).to(D), {A} * 2)
    {A}.index_fill(0, torch.tensor([0]).to(D), {f})
    {A}.take_along_dim({A}.argsort(-1, stable=True), -1)
    {A}.masked_scatter({A} > 0, {A}.neg())
    torch.index_put({A}, ({A}.new_zeros(2).long(),), {A}[:1], accumulate=True)
    {I}.flatten().bincount()
    {A}[torch.tensor(0)]
    {A}[torch.tensor([0, -1])]
""")

IN_PLACE = _lines("""
    {A}.add_({f})
    {A}.mul_(0.5)
    {A}.mul_({B})
    {A}.add_({B}, alpha=0.5)
    {A}.copy_({B})
    {A}.zero_()
    {A}.fill_({f})
    {A}.relu_()
    {A}.clamp_(-2, 2)
    {A}.tanh_()
    {A}[0] = {f}
    {A}[..., ::2] = {f}
    {A}[{A} > 0.5] = {f}
    {A}[..., 0] += 1
    {A}[:1].mul_(2)
    {A}[..., 1:].copy_({A}[..., :-1].clone())
    {A}.addcmul_({B}, {B}, value=0.1)
    {A}.lerp_({B}, 0.25)
    {A}.masked_fill_({A} > 1, {f})
    {A}.normal_()
    {A}.uniform_(-1, 1)
    {A}.random_(0, 5)
    {A}.bernoulli_(0.4)
    {A}.exponential_()
    {A}.t_()
    {A}.transpose_(0, -1)
    {A}.unsqueeze_(0)
    {A}.squeeze_()
    {A}.swapaxes_(0, -1)
    {A}.index_fill_(0, torch.tensor([0]).to(D), {f})
    {A}.index_add_(0, torch.tensor([0]).to(D), {A}[:1].clone())
    {A}.scatter_(0, torch.zeros_like({A}, dtype=torch.long), {f})
    {A}.index_copy_(0, torch.tensor([0]).to(D), {A}[-1:].clone())
    {A}.data.mul_(0.9)
    {A}.detach().add_(0.1)
    {A}.flatten()[:1].fill_(3)
    {A}.view(-1)[::2].neg_()
    {A}.diagonal().fill_(1)
    {A}.set_({B})
    {A}.set_({A}.clone())
    {A}.data = {B}
    {A}.data = {A}.data.clone()
    {A}.resize_(2, 3).fill_({f})
    {A}.resize_({A}.shape[0] + 1 if {A}.dim() else 1).zero_()
    {A}.untyped_storage().resize_({A}.untyped_storage().nbytes() + 640)
    {A}.untyped_storage().fill_(0)
    {A}.untyped_storage().copy_({A}.flatten().clone().untyped_storage())
    {A}.round_().clamp_(-9, 9)
    {A}.cumsum_({d})
    {A}.sub_({A}.mean())
    {A}.div_({A}.abs().max() + 1)
    {A}.pow_(2)
    {A}.nan_to_num_()
    {A}.expand_as({A}).add_(1)
    {A}.geometric_(0.5)
    {A}.log_normal_()
    {A}.cauchy_().clamp_(-3, 3)
    {A}.triu_()
    {A}.renorm_(2, 0, 1.0)
    {A}.as_strided_((2, 2), (2, 1))
    {A}.index_put_(({A}.new_zeros(2).long(),), {A}[:1].clone(), True)
    {A}.fill_diagonal_(2.0)
    {A}.eq_({B})
    {A}.logical_not_()
    {A}.ldexp_({A}.long() % 3)
    {A}.put_(torch.tensor([0]).to(D), {A}.new_ones(1))
    nn.init.xavier_uniform_({A})
    nn.init.trunc_normal_({A})
    nn.init.kaiming_normal_({A})
    F.relu({A}, inplace=True)
    F.dropout({A}, 0.2, inplace=True)
    F.silu({A}, inplace=True)
    {A}.normal_(generator=G)
    {A}.uniform_(generator=G)
""")

OUT = _lines("""
    torch.add({A}, {B}, out={C})
    torch.mul({A}, {f}, out={C})
    torch.cat([{A}, {B}], out={C})
    torch.sum({A}, {d}, out={C})
    torch.matmul({F2}, {F2}.t(), out={C})
    torch.sin({A}, out={C})
    torch.sin({A}, out={A})
    torch.clamp({A}, -1, 1, out={C}[:])
    torch.add({A}, {B}, out={C}[::2])
    torch.stack([{A}, {A}], out={C})
    torch.where({A} > 0, {A}, {B}, out={C})
    torch.cumsum({A}, {d}, out={C})
    torch.index_select({A}, 0, torch.tensor([0]).to(D), out={C})
    torch.arange(7, out={C}, device={C}.device)
    torch.sort({A}, out=({C}, {I}))
    torch.max({A}, {d}, out=({C}, {I}))
    torch.bmm({F3}, {F3}.mT, out={C})
    torch.topk({A}, 1, out=({C}, {I}))
    torch.mean({A}, {d}, out={C})
    torch.logsumexp({A}, {d}, out={C})
    torch.softmax({A}, {d}, out={C})
    torch.addmm({F2}[:, :1], {F2}, {F2}.t(), out={C})
    torch.randn({shp}, out={C}, generator=G, device={C}.device)
    torch.linspace(0, 1, 9, out={C}, device={C}.device)
    torch.nonzero({A}, out={I})
    torch.full((3,), {f}, out={C}, device={C}.device)
    torch.add({A}, {A}, out={A}.t())
""")

LISTS = _lines("""
    torch._foreach_add_({L}, {f})
    torch._foreach_mul_({L}, 0.5)
    torch._foreach_add_({L}, {L2}, alpha=0.1)
    {r} = torch._foreach_add({L}, {L2})
    {r} = torch._foreach_mul({L}, 2.0)
    torch._foreach_zero_({L})
    {r} = torch._foreach_norm({L}, 2)
    torch._foreach_lerp_({L}, {L2}, 0.3)
    torch._foreach_addcmul_({L}, {L2}, {L2}, 0.1)
    {r} = torch._foreach_abs({L2}); torch._foreach_addcdiv_({L}, {L2}, {r}, 0.1)
    torch._foreach_copy_({L}, {L2})
    {r} = torch._foreach_sqrt(torch._foreach_abs({L}))
    torch._foreach_neg_({L})
    {r} = torch._foreach_maximum({L}, {L2})
    torch._foreach_clamp_max_({L}, 1.0)
    torch._foreach_sub_({L}, {L2})
    torch._foreach_tanh_({L})
    {r} = torch._foreach_pow({L}, 2)
    torch._foreach_mul_({L}, torch.tensor(0.5).to(D))
    torch._foreach_add_({L}, [0.1] * len({L}))
    nn.utils.clip_grad_norm_({L}, 1.0)
    {r} = torch._foreach_max({L})
    torch._foreach_div_({L}, torch.tensor(2.0))
    torch._foreach_sign_({L})
    {r} = torch._foreach_abs({L}); torch._foreach_add_({r}, {L})
    with torch.inference_mode(): {r} = torch._foreach_mul({L}, 2.0)
    with torch.no_grad(): torch._foreach_mul_({L}, 0.5)
    with native({A}) as n_: torch._foreach_add_([{A}], 1.0); n_.mul_(0.5)
""")

AUTOGRAD = _results("""
    ways.gradients([{A}, {B}], lambda a, b: a * b + a.sin())
    ways.gradients([{A}, {B}], lambda a, b: (a + b).tanh() * a, 2)
    ways.gradients([{F2}], lambda a: F.layer_norm(a @ a.t(), (a.shape[0],)))
    ways.gradients([{F2}], lambda a: F.softmax(a @ a.t(), -1) @ a, 2)
    ways.gradients([{A}], lambda a: a[..., ::2].clone().mul_(2))
    ways.gradients([{A}], lambda a: torch.cat([a, a.neg()], 0).cumsum(0))
    ways.gradients([{A}], lambda a: ways.Scaled.apply(a, 0.7, False))
    ways.gradients([{A}], lambda a: ways.Scaled.apply(a.tanh(), 0.7, True))
    ways.gradients([{A}], lambda a: ways.InPlace.apply(a.clone()))
    ways.gradients([{A}, {B}], lambda a, b: ways.Several.apply(a, b)[1])
    ways.gradients([{A}, {B}], lambda a, b: ways.Several.apply(a, b)[0].sin())
    ways.chain({A}, R, {n} + 4)
    ways.chain({A}, R, 12)
    ways.hooked({A})
    ways.packed({A})
    ways.nested_backward({A})
    ways.in_thread(lambda: ways.chain({A}, R, 6))
    ways.gradients([{F4}], lambda a: F.conv2d(a, a[:1, :, :3, :3]).relu_())
    ways.gradients([{F4}], lambda a: F.max_pool2d(F.instance_norm(a), 2))
    ways.gradients([{F3}], lambda a: F.scaled_dot_product_attention(a, a, a))
    ways.gradients([{A}], lambda a: F.dropout(a, 0.5) * torch.rand_like(a))
    ways.gradients([{A}], lambda a: a.index_select(0, {I}.flatten() % 1), 2)
    ways.gradients([{A}], lambda a: a.sort(-1)[0].unbind(0)[0])
    ways.gradients([{A}], lambda a: a.expand(3, *a.shape).reshape(-1))
    ways.gradients([{A}], lambda a: a.as_strided((2, 2), (1, 2)))
    ways.gradients([{A}], lambda a: torch.fft.rfft(a.float()))
    ways.gradients([{A}], lambda a: a.logsumexp(-1), 2)
    ways.gradients([{A}], lambda a: a.norm(), 2)
    torch.func.grad(lambda a: (a.sin() * a).sum())({A})
    torch.func.vmap(lambda a: a * 2 + a.sum())({A})
    torch.func.jvp(torch.sin, ({A},), ({A},))[1]
    torch.func.vjp(torch.tanh, {A})[1](torch.ones_like({A}))[0]
    torch.func.jacrev(lambda a: a[:2].square())({A}.flatten()[:6])
    torch.func.hessian(lambda a: a.pow(3).sum())({A}.flatten()[:4])
""")

OTHERS = _lines("""
    del {T}
    del {T}
    del {T}
    gc.collect(0)
    {r} = {A}.item() if {A}.numel() == 1 else 0
    {r} = {A}.flatten()[:5].tolist()
    {r} = {A}.cpu().mul(2).to(D)
    {r} = {A}.to(D, copy=True)
    {r} = {A}.to('cpu').clone().to(D, non_blocking=True)
    bag.append({A}); bag = bag[-6:]
    bag = bag[::2]
    bag = []
    {r} = {A}[: int({A}.float().abs().sum().nan_to_num(0, 0, 0).item()) % 5 + 1]
    {r} = {A} * 2 if bool(({A} > 0).any()) else {A} - 1
    {r} = copy.deepcopy({A}.detach())
    {r} = box.through_a_file([{A}.detach(), {A}.detach()[..., :1]])
    {r} = pickle.loads(pickle.dumps({A}.detach()))
    {r} = torch.tensor({n}.5).to(D) + {A}
    {r} = {A} + torch.tensor(2.0)
    torch.manual_seed({n})
    {r} = torch.rand(3, 4, device=D)
    {r} = torch.randn({n}, 33, device=D)
    {r} = torch.randperm(9, device=D)
    {r} = torch.randint(0, 9, (4, 4), device=D)
    {r} = torch.rand(5, device=D, generator=G)
    {r} = torch.zeros(0, 3, device=D)
    {r} = torch.ones((), device=D)
    {r} = torch.arange({n}, device=D).float()
    {r} = torch.tensor([1.0, 2.0, 3.0], device=D)
    {r} = torch.full((3, 3), {f}, device=D)
    {r} = torch.eye(4, device=D)
    {r} = torch.empty_like({A}).copy_({A})
    {r} = torch.as_tensor([1, 2, 3], device=D)
    {r} = {A}.requires_grad_()
    {r} = {A}.detach().requires_grad_(); ({r} * 3).sum().backward()
    {A}.requires_grad_(False)
    {A}.detach_()
    {r} = nn.Parameter({A}.detach())
    {r} = ways.in_thread(lambda: {A} * 2 + 1)
    with torch.random.fork_rng(devices=[]): {r} = torch.rand(4, device=D)
    G.set_state(G.get_state())
    {r} = {A}.untyped_storage().nbytes()
    with torch.no_grad(): {r} = {A}.mul(2)
    with torch.inference_mode(): {r} = ({A} * 2).clone()
    with torch.inference_mode(): {r} = {A} * 2; {r} += {f}
    with torch.autocast(D, torch.bfloat16): {r} = {F2} @ {F2}.t() + 1
    with torch.autocast(D, torch.float16): {r} = F.linear({F2}, {F2})
    {r} = torch.broadcast_tensors({A}, {A}.new_zeros(1))[1]
    {r} = list({A}.unbind(0))
    {r} = torch.nn.utils.parameters_to_vector([{A}, {B}])
    {r} = torch.stack([{A}] * 3).sum(0)
    {r} = {A}.storage_offset(), {A}.is_contiguous()
    {r} = torch.from_numpy({A}.detach().double().cpu().numpy()).to(D)
    {r} = box.resized({A}.detach())
    raise ValueError('planned')
    {r} = {A} @ rnd((3, 5, 7), 3)
    {r} = {A}.view(7, 11, 13)
    {r} = torch.cat([{A}, rnd((2, 2, 2, 2), 3)])
    with box.side_stream(): {r} = {A} * 2 + {B}
    with box.side_stream(): {A}.mul_(0.5)
    with box.side_stream(): {r} = {F2} @ {F2}.t(); {r}.add_(1)
    with box.side_stream(): {r} = ways.gradients([{A}], torch.tanh)
""")

# What is done to a tensor beside a native alias of another, or the same, one.
BESIDE_NATIVE = _lines("""
    {A}.add_(1)
    {r} = {A} * 2
    {r} = {A}.clone()
    {A}.zero_()
    {r} = {A}.sum()
    torch._foreach_add_([{A}, {B}], 0.5)
    {A}.copy_({B})
""")
ON_NATIVE = ("mul_(0.5)", "add_(1)", "sum()", "clamp_(-1, 1)")

TRAINING = _lines("""
    {r} = train({m}, {o}, D, '{how}')
    {r} = train({m}, {o}, D, '{how}')
    {r} = train({m}, {o}, D, '{how}')
    {r} = train({m}, {o}, D, '{how}')
    {r} = evaluate({m}, 'no_grad')
    {r} = evaluate({m}, 'inference')
    {r} = evaluate({m}, 'func')
    {m}.to('cpu'); {m}.to(D)
    {m}.model.load_state_dict(copy.deepcopy({m}.model.state_dict()))
    {o}.load_state_dict(copy.deepcopy({o}.state_dict()))
    {o}.zero_grad(set_to_none=False)
""")

SETTINGS = [
    "chameleon: " + line
    for line in _lines("""
    box.budget({budget})
    box.budget({budget})
    config.recompute = S.choice(['auto', 'off'])
    config.policy = S.choice(['forecast', 'lru'])
    config.oversubscription = S.choice([16, 32, 64])
    config.host_budget = S.choice(['none', 1 << 28])
    _C.evict_all(0)
    _T.drop_all()
    _T.drop({X})
    _C.evict({X})
    _T.set_stress(S.choice(['never', 'random', 'all']), S.randrange(99))
    _T.set_drop_stress(S.choice(['never', 'record', 'random']), S.randrange(99))
    tc.step()
    tc.step()
    tc.reset_swap_stats()
    torch.chameleon.synchronize()
    torch.chameleon.empty_cache()
    torch.chameleon.memory_stats()
    _C.check_invariants(0, 3)
    box.check_native({X})
    """)
]

# Kinds of lines.
KINDS = {
    "unary": UNARY,
    "pure": PURE,
    "views": VIEWS,
    "binary": BINARY,
    "products": PRODUCTS,
    "indexing": INDEXING,
    "in place": IN_PLACE,
    "out": OUT,
    "lists": LISTS,
    "autograd": AUTOGRAD,
    "others": OTHERS,
    "training": TRAINING,
    "settings": SETTINGS,
    "native": (),  # made by the generator
    "operators": (),
}
