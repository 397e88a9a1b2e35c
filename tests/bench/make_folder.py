"""Writes a model folder to load: part of the 0.8B shape in F32, about 0.9 GB, weights from a PRNG, no decider family.

usage: make_folder.py DIR
"""

import json
import pathlib
import random
import struct
import sys

HIDDEN, MLP, LAYERS, VOCABULARY = 1024, 3584, 8, 60_000
HEADS, KV_HEADS, HEAD_DIM = 8, 2, 256
GDN_HEADS, GDN_DIM = 16, 128


def shapes():
    yield "embed_tokens.weight", [VOCABULARY, HIDDEN]
    yield "norm.weight", [HIDDEN]
    for layer in range(LAYERS):
        at = f"layers.{layer}."
        yield at + "input_layernorm.weight", [HIDDEN]
        yield at + "post_attention_layernorm.weight", [HIDDEN]
        yield at + "mlp.gate_proj.weight", [MLP, HIDDEN]
        yield at + "mlp.up_proj.weight", [MLP, HIDDEN]
        yield at + "mlp.down_proj.weight", [HIDDEN, MLP]
        if layer % 4 == 3:
            at += "self_attn."
            yield at + "q_proj.weight", [HEADS * 2 * HEAD_DIM, HIDDEN]
            yield at + "k_proj.weight", [KV_HEADS * HEAD_DIM, HIDDEN]
            yield at + "v_proj.weight", [KV_HEADS * HEAD_DIM, HIDDEN]
            yield at + "o_proj.weight", [HIDDEN, HEADS * HEAD_DIM]
            yield at + "q_norm.weight", [HEAD_DIM]
            yield at + "k_norm.weight", [HEAD_DIM]
        else:
            at += "linear_attn."
            columns = GDN_HEADS * GDN_DIM
            yield at + "in_proj_qkv.weight", [3 * columns, HIDDEN]
            yield at + "in_proj_z.weight", [columns, HIDDEN]
            yield at + "in_proj_b.weight", [GDN_HEADS, HIDDEN]
            yield at + "in_proj_a.weight", [GDN_HEADS, HIDDEN]
            yield at + "conv1d.weight", [3 * columns, 1, 4]
            yield at + "A_log", [GDN_HEADS]
            yield at + "dt_bias", [GDN_HEADS]
            yield at + "norm.weight", [GDN_DIM]
            yield at + "out_proj.weight", [HIDDEN, columns]


CONFIG = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": GDN_DIM,
    "linear_value_head_dim": GDN_DIM,
    "linear_num_key_heads": GDN_HEADS,
    "linear_num_value_heads": GDN_HEADS,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    header, end = {}, 0
    for name, shape in shapes():
        begin, size = end, 4
        for length in shape:
            size *= length
        end += size
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    numbers = random.Random(1)
    block = struct.pack(f"<{1 << 18}f", *(numbers.uniform(-0.05, 0.05) for _ in range(1 << 18)))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        while end > 0:
            end -= file.write(block[:end])


main()
