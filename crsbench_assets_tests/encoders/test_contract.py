"""The contract: it holds for all 15 at a small size, and each clause fails for an encoder that breaks it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from crsbench_assets.encoders import contract as module
from crsbench_assets.encoders.contract import contract, cosine_similarity
from crsbench_assets_tests.encoders.fixtures import card as demo_card
from crsbench_assets_tests.encoders.tiny import MAKERS


def verdicts(checks):
    return {check.name: check.verdict for check in checks}


@pytest.mark.parametrize("encoder_id", MAKERS)
def test_it_holds(encoder_id, tmp_path):
    tiny = MAKERS[encoder_id](tmp_path)
    first = contract(tiny.card)
    assert [check for check in first if check.verdict == "failed"] == []
    assert "recorded in" in first[-1].found
    again = contract(tiny.card)
    assert again[-1].verdict == "ok" and "cosine with the recorded vector 1.000000" in again[-1].found
    stock = {"differs from stock": "not checked"} if encoder_id == "llava_med" else {}
    assert {name: verdict for name, verdict in verdicts(again).items() if verdict != "ok"} == stock


def test_a_golden_vector_notices_other_weights(tmp_path):
    tiny = MAKERS["vit_b16_in21k"](tmp_path)
    contract(tiny.card)
    path = Path(tiny.card.place.cache) / "golden.json"
    known = json.loads(path.read_text())
    known["vector"][0] += 10.0
    path.write_text(json.dumps(known))
    assert contract(tiny.card)[-1].verdict == "failed"
    other = tiny.changed("embedding", pooling="mean_patches")  # another content: another record
    assert "recorded in" in contract(other)[-1].found


class Broken:
    """An encoder of two numbers per image that breaks what it is told to."""

    dim = 2
    is_on_processor = True

    def __init__(self, fault):
        self.fault, self.calls = fault, 0

    def encode(self, batch):
        self.calls += 1
        vectors = np.stack([batch.mean(axis=(1, 2, 3)), batch.std(axis=(1, 2, 3))], axis=1).astype(np.float32)
        if self.fault == "shape":
            return vectors.astype(np.float64)
        if self.fault == "finite":
            vectors[-1, 0] = np.nan
        if self.fault == "deterministic":
            vectors[0, 0] += 1e-3 * self.calls
        if self.fault == "batch size":
            vectors += 0.01 * len(batch)
        if self.fault == "neighbours":
            vectors += 0.01 * vectors[0]
        if self.fault == "different images":
            vectors[:] = vectors[:1] if len(batch) == 1 else 0.5
        return vectors

    def encode_as(self, batch, dtype):
        if self.fault == "no short type":
            raise RuntimeError("unsupported")
        vectors = self.encode(batch)
        return vectors[:, ::-1] if self.fault == "coarse" else vectors


@pytest.mark.parametrize(
    "fault",
    ["shape", "finite", "deterministic", "batch size", "neighbours", "different images", "coarse", "no short type"],
)
def test_each_clause_can_fail(fault, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "load_encoder", lambda *_: Broken(fault))
    tiny_card = demo_card("handcrafted")
    found = {check.name: check for check in contract(tiny_card)}
    if fault == "coarse":
        for name in ("bfloat16", "float16"):
            assert found[name].verdict == "ok" and found[name].found.startswith("refused: float32 only")
    elif fault == "no short type":
        assert found["bfloat16"].found == found["float16"].found == "the device has none (unsupported)"
    else:
        assert found[fault].verdict == "failed"
    monkeypatch.setattr(module, "load_encoder", lambda *_: Broken(""))
    assert {c.verdict for c in contract(tiny_card)} == {"ok", "not checked"}


def test_a_failed_contract_records_nothing(tmp_path, monkeypatch):
    tiny = MAKERS["vit_b16_in21k"](tmp_path)
    monkeypatch.setattr(module, "load_encoder", lambda *_: Broken("finite"))
    assert "while another check fails" in contract(tiny.card)[-1].found
    assert not (Path(tiny.card.place.cache) / "golden.json").exists()


def test_cosine_of_directions():
    # (3, 4) and (4, 3): 24 / 25
    assert cosine_similarity(np.float32([3, 4]), np.float32([4, 3])) == pytest.approx(0.96, abs=1e-12)
    assert cosine_similarity(np.float32([1, 0]), np.float32([-2, 0])) == -1.0
    assert np.isnan(cosine_similarity(np.float32([0, 0]), np.float32([1, 0])))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_it_holds_on_a_gpu(tmp_path):
    tiny = MAKERS["medsiglip"](tmp_path)
    assert [check for check in contract(tiny.card, "cuda") if check.verdict == "failed"] == []
