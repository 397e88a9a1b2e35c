"""A Qwen3.5-style text model (gated delta rule + full attention) written for fast training on one GPU.

Parameter names equal those of the published checkpoints, so `state_dict()` is the export.
"""
import json
import math

import torch
import torch.nn.functional as F
from torch import nn


class Config:
    hidden = 128
    mlp = 448
    layers = 8
    heads, kv_heads, head_dim = 2, 1, 256
    rotary = 64
    k_heads, v_heads, gdn_dim = 1, 2, 128
    conv = 4
    vocab = 4096
    eps = 1e-6
    theta = 1e7

    def hf(self):
        kinds = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(self.layers)]
        text = {
            "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True, "bos_token_id": None, "dtype": "bfloat16",
            "eos_token_id": self.vocab - 5, "full_attention_interval": 4, "head_dim": self.head_dim, "hidden_act": "silu",
            "hidden_size": self.hidden, "initializer_range": 0.02, "intermediate_size": self.mlp, "layer_types": kinds,
            "linear_conv_kernel_dim": self.conv, "linear_key_head_dim": self.gdn_dim, "linear_num_key_heads": self.k_heads,
            "linear_num_value_heads": self.v_heads, "linear_value_head_dim": self.gdn_dim, "mamba_ssm_dtype": "float32",
            "max_position_embeddings": 4096, "model_type": "qwen3_5_text", "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers, "num_key_value_heads": self.kv_heads, "pad_token_id": None,
            "partial_rotary_factor": 0.25, "rms_norm_eps": self.eps,
            "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
                                "rope_theta": self.theta, "rope_type": "default"},
            "tie_word_embeddings": True, "use_cache": True, "vocab_size": self.vocab}
        return {"architectures": ["Qwen3_5ForConditionalGeneration"], "language_model_only": True, "model_type": "qwen3_5",
                "text_config": text, "tie_word_embeddings": True}


class Norm(nn.Module):
    def __init__(self, n, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n))
        self.eps = eps

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


def linear(i, o):
    m = nn.Linear(i, o, bias=False)
    nn.init.normal_(m.weight, std=1 / math.sqrt(i))
    return m


def unit_lower_inverse(a):
    """(I + a)^-1 for strictly lower triangular a [..., 64, 64]: 16 x 16 blocks by doubling, then two
    block merges, all without gradient; one Newton step at the end carries the gradient."""
    n = a.shape[-1]
    eye = torch.eye(n, device=a.device, dtype=a.dtype)
    with torch.no_grad():
        b = 16
        d = torch.stack([a[..., i:i + b, i:i + b] for i in range(0, n, b)], -3)
        e = eye[:b, :b]
        p = -d
        x = e + p
        for _ in range(3):
            p = p @ p
            x = x + x @ p
        while b < n:
            x1, x2 = x[..., 0::2, :, :], x[..., 1::2, :, :]
            low = torch.stack([a[..., i + b:i + 2 * b, i:i + b] for i in range(0, n, 2 * b)], -3)
            y = -(x2 @ (low @ x1))
            x = torch.cat([torch.cat([x1, torch.zeros_like(x1)], -1), torch.cat([y, x2], -1)], -2)
            b *= 2
        x = x[..., 0, :, :]
    return 2 * x - x @ ((eye + a) @ x)


def delta_rule(q, k, v, g, beta, chunk=64):
    """Chunked gated delta rule. q, k [B,H,T,D]; v [B,H,T,D]; g, beta [B,H,T]; T a multiple of `chunk`."""
    B, H, T, D = q.shape
    n = T // chunk
    q, k, v = (x.reshape(B, H, n, chunk, D) for x in (q, k, v))
    g, beta = (x.reshape(B, H, n, chunk) for x in (g, beta))
    g = g.cumsum(-1)
    low = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    decay = (g[..., :, None] - g[..., None, :]).masked_fill(~low, float("-inf")).exp()
    kb = k * beta[..., None]
    a = (kb @ k.transpose(-1, -2)) * decay
    a = a.masked_fill(~low.tril(-1), 0.0)
    x = unit_lower_inverse(a)
    u, w = x @ (v * beta[..., None]), x @ (kb * g.exp()[..., None])
    att = (q @ k.transpose(-1, -2)) * decay
    qg = q * g.exp()[..., None]
    kg = k * (g[..., -1:] - g).exp()[..., None]
    last = g[..., -1].exp()
    S = q.new_zeros(B, H, D, D)
    out = []
    for i in range(n):
        vn = u[:, :, i] - w[:, :, i] @ S
        out.append(qg[:, :, i] @ S + att[:, :, i] @ vn)
        if i + 1 < n:
            S = S * last[:, :, i, None, None] + kg[:, :, i].transpose(-1, -2) @ vn
    return torch.stack(out, 2).reshape(B, H, T, D)


class GatedNorm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))


class Conv(nn.Module):
    def __init__(self, n, k):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, 1, k) * 0.3)


class Gdn(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.kd, self.vd = c.k_heads * c.gdn_dim, c.v_heads * c.gdn_dim
        self.in_proj_qkv = linear(c.hidden, 2 * self.kd + self.vd)
        self.in_proj_z = linear(c.hidden, self.vd)
        self.in_proj_b = linear(c.hidden, c.v_heads)
        self.in_proj_a = linear(c.hidden, c.v_heads)
        self.conv1d = Conv(2 * self.kd + self.vd, c.conv)
        self.A_log = nn.Parameter(torch.empty(c.v_heads).uniform_(1, 4).log())
        dt = torch.exp(torch.empty(c.v_heads).uniform_(math.log(1e-3), math.log(0.1)))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.norm = GatedNorm(c.gdn_dim)
        self.out_proj = linear(self.vd, c.hidden)

    def forward(self, x):
        c, (B, T, _) = self.c, x.shape
        qkv = self.in_proj_qkv(x)
        w = self.conv1d.weight[:, 0].to(qkv.dtype)
        pad = F.pad(qkv, (0, 0, c.conv - 1, 0))
        y = pad[:, 0:T] * w[:, 0]
        for i in range(1, c.conv):
            y = y + pad[:, i:i + T] * w[:, i]
        qkv = F.silu(y.float())
        q, k, v = qkv.split([self.kd, self.kd, self.vd], -1)
        def heads(t, n):
            return t.reshape(B, T, n, c.gdn_dim).transpose(1, 2)
        q, k, v = heads(q, c.k_heads), heads(k, c.k_heads), heads(v, c.v_heads)
        q = q * torch.rsqrt(q.pow(2).sum(-1, keepdim=True) + 1e-6) * c.gdn_dim ** -0.5
        k = k * torch.rsqrt(k.pow(2).sum(-1, keepdim=True) + 1e-6)
        r = c.v_heads // c.k_heads
        q, k = q.repeat_interleave(r, 1), k.repeat_interleave(r, 1)
        beta = self.in_proj_b(x).float().sigmoid().transpose(1, 2)
        g = -self.A_log.float().exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        with torch.autocast(x.device.type, enabled=False):
            o = delta_rule(q, k, v, g.transpose(1, 2), beta)
        o = o.transpose(1, 2)
        o = o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + c.eps) * self.norm.weight
        z = self.in_proj_z(x).reshape(B, T, c.v_heads, c.gdn_dim)
        return self.out_proj((o * F.silu(z.float())).reshape(B, T, -1))


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = linear(c.hidden, c.heads * c.head_dim * 2)
        self.k_proj = linear(c.hidden, c.kv_heads * c.head_dim)
        self.v_proj = linear(c.hidden, c.kv_heads * c.head_dim)
        self.o_proj = linear(c.heads * c.head_dim, c.hidden)
        self.q_norm, self.k_norm = Norm(c.head_dim), Norm(c.head_dim)

    def forward(self, x, cos, sin):
        c, (B, T, _) = self.c, x.shape
        q, gate = self.q_proj(x).reshape(B, T, c.heads, 2 * c.head_dim).split(c.head_dim, -1)
        k = self.k_proj(x).reshape(B, T, c.kv_heads, c.head_dim)
        v = self.v_proj(x).reshape(B, T, c.kv_heads, c.head_dim)
        def rope(t):
            a, b, rest = t[..., :c.rotary // 2], t[..., c.rotary // 2:c.rotary], t[..., c.rotary:]
            return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)
        q, k = rope(self.q_norm(q)), rope(self.k_norm(k))
        r = c.heads // c.kv_heads
        q, k, v = (t.to(v.dtype).transpose(1, 2) for t in (q, k, v))
        k, v = k.repeat_interleave(r, 1), v.repeat_interleave(r, 1)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return self.o_proj((o * gate.sigmoid()).reshape(B, T, -1))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj, self.up_proj = linear(c.hidden, c.mlp), linear(c.hidden, c.mlp)
        self.down_proj = linear(c.mlp, c.hidden)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c, i, dropout):
        super().__init__()
        self.full = i % 4 == 3
        self.input_layernorm, self.post_attention_layernorm = Norm(c.hidden), Norm(c.hidden)
        if self.full:
            self.self_attn = Attention(c)
        else:
            self.linear_attn = Gdn(c)
        self.mlp = Mlp(c)
        self.dropout = dropout

    def forward(self, x, cos, sin):
        h = self.input_layernorm(x)
        h = self.self_attn(h, cos, sin) if self.full else self.linear_attn(h)
        x = x + F.dropout(h.float(), self.dropout, self.training)
        h = self.mlp(self.post_attention_layernorm(x))
        return x + F.dropout(h.float(), self.dropout, self.training)


class Model(nn.Module):
    def __init__(self, c, dropout=0.0):
        super().__init__()
        self.c = c
        self.embed_tokens = nn.Embedding(c.vocab, c.hidden)
        nn.init.normal_(self.embed_tokens.weight, std=0.05)
        self.layers = nn.ModuleList(Layer(c, i, dropout) for i in range(c.layers))
        self.norm = Norm(c.hidden)
        for n, p in self.named_parameters():
            if n.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")):
                p.data /= math.sqrt(2 * c.layers)
        inv = c.theta ** (-torch.arange(0, c.rotary, 2).double() / c.rotary)
        ang = torch.arange(4096)[:, None].double() * inv
        self.register_buffer("cos", ang.cos().float()[None, :, None], persistent=False)
        self.register_buffer("sin", ang.sin().float()[None, :, None], persistent=False)

    def forward(self, ids, tap=False, fast=None):
        """`tap`: also return the stream before the last layer. `fast`: compiled layers to use."""
        T = ids.shape[1]
        x = self.embed_tokens(ids)
        cos, sin = self.cos[:, :T], self.sin[:, :T]
        for layer in fast or self.layers:
            before = x
            x = layer(x, cos, sin)
        return (self.norm(x), before) if tap else self.norm(x)

    def letters(self, ids, lengths):
        """f32 logits of the 26 letter rows at the last token of every prompt."""
        h = self(ids)
        h = h[torch.arange(len(ids), device=ids.device), lengths - 1]
        return h.float() @ self.embed_tokens.weight[32:58].float().T


def f32_kept(name):
    return name.endswith(("A_log", "linear_attn.norm.weight"))


def save_checkpoint(model, folder):
    from safetensors.torch import save_file
    tensors = {}
    for n, p in model.state_dict().items():
        p = p.detach().float().cpu()
        tensors["model.language_model." + n] = (p if f32_kept(n) else p.to(torch.bfloat16)).contiguous()
    save_file(tensors, f"{folder}/model.safetensors", metadata={"format": "pt"})
    with open(f"{folder}/config.json", "w") as f:
        json.dump(model.c.hf(), f, indent=2)
        f.write("\n")


def load_checkpoint(folder, device="cpu"):
    from safetensors.torch import load_file
    c, t = Config(), json.load(open(f"{folder}/config.json"))["text_config"]
    c.hidden, c.mlp, c.layers, c.vocab = t["hidden_size"], t["intermediate_size"], t["num_hidden_layers"], t["vocab_size"]
    m = Model(c)
    m.load_state_dict({k[len("model.language_model."):]: v.float() for k, v in load_file(f"{folder}/model.safetensors").items()})
    return m.to(device).eval()
