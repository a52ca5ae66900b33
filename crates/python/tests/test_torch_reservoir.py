"""``forebay.torch.Reservoir``: batches of an ensemble as tensors."""

import forebay as fb
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import forebay.torch  # noqa: E402
from forebay.ensemble import Member  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402


def fill(samples: int = 10, member: int = 0) -> None:
    with Member("ens", member) as one:
        for i in range(samples):
            one.put(x=np.full((2, 3), i, "f4"), t=i / 4, note="text")


@pytest.mark.parametrize("workers", [None, 0])
def test_each_sample_comes_once_as_a_row_of_a_tensor(workers):
    fill()
    batches = forebay.torch.Reservoir("ens", members=1, batch=4)
    if workers is not None:
        batches = DataLoader(batches, batch_size=None, num_workers=workers)
    found = []
    for batch in batches:
        assert set(batch) == {"x", "t"} and batch["x"].shape[1:] == (2, 3) and batch["x"].dtype == torch.float32
        assert (batch["x"][:, 0, 0] == batch["t"] * 4).all() and (batch["x"] == batch["x"][:, :1, :1]).all()
        found += batch["x"][:, 0, 0].tolist()
        batch["x"] += 1
    assert sorted(found) == list(range(10))


def test_one_variable_and_a_transform_and_going_on():
    fill()
    batches = forebay.torch.Reservoir("ens", "x", members=1, batch=4, transform=lambda x: x.sum(dim=(1, 2)))
    first = next(iter(batches))
    assert first.shape == (4,)
    # It was not through, so it comes again.
    rest = torch.cat(list(batches))
    assert sorted((rest / 6).tolist()) == list(range(10))


def test_what_cannot_be_is_said():
    fill(3)
    with pytest.raises(fb.errors.Usage, match="a worker cannot"):
        list(DataLoader(forebay.torch.Reservoir("ens", members=1), batch_size=None, num_workers=1))
    with pytest.raises(fb.errors.Usage, match="commit_every"):
        forebay.torch.Reservoir("ens", commit_every=None)
    with Member("ens", 1) as other:
        other.put(x=np.zeros((5, 3), "f4"), t=0.0)
    with pytest.raises(fb.errors.VariableMismatch, match="x is not the same"):
        list(forebay.torch.Reservoir("ens", members=2))
    with pytest.raises(fb.errors.UnknownVariable):
        list(forebay.torch.Reservoir("ens", ["y"], members=2))
