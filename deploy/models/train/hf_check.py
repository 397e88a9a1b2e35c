"""Loads the exported folder with transformers' own Qwen3.5 text model, in f32.

    python hf_check.py ../deltagate-mini
"""
import json
import sys

import torch


def load_hf(folder):
    from safetensors.torch import load_file
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextModel
    cfg = json.load(open(f"{folder}/config.json"))["text_config"]
    model = Qwen3_5TextModel(Qwen3_5TextConfig(**cfg)).float().eval()
    sd = {k[len("model.language_model."):]: v.float() for k, v in load_file(f"{folder}/model.safetensors").items()}
    missing, unexpected = model.load_state_dict(sd, strict=True)
    assert not missing and not unexpected
    return model, sd["embed_tokens.weight"]


def check(folder):
    """Letter logits of the common example: transformers against the training code, at most 1e-3 apart."""
    from tokenizers import Tokenizer
    from evaluate import letter_logits
    from model import load_checkpoint
    from render import COMMON, prompt_of
    tok = Tokenizer.from_file(f"{folder}/tokenizer.json")
    hf, emb = load_hf(folder)
    own_model = load_checkpoint(folder)
    for name, q in COMMON["questions"].items():
        p = prompt_of(COMMON["state"], q)
        ids = tok.encode(p, add_special_tokens=False).ids
        with torch.no_grad():
            z = emb[32:58] @ hf(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
        diff = float((z - torch.from_numpy(letter_logits(own_model, tok, [p])[0])).abs().max())
        print(name, [round(x, 4) for x in z[:3].tolist()], "difference", diff)
        assert diff < 1e-3


if __name__ == "__main__":
    check(sys.argv[1])
