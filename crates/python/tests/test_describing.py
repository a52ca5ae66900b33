"""Names of dimensions, attributes of variables and versions, and variables that ranks put one behind the other."""

import forebay as fb
import numpy as np
import pytest
from forebay import errors


@pytest.fixture(params=["space", "files"])
def channel(request: pytest.FixtureRequest) -> str:
    return request.param


def test_dims_and_attributes_belong_to_a_version(channel):
    values = {
        "units": "K",
        "valid": True,
        "level": 3,
        "scale": 0.1 + 0.2,
        "range": [0.5, float("inf")],
        "codes": [1, -2],
        "regions": ["north", ""],
    }
    with fb.open("heat", "w", channel=channel, retention="forever") as ch:
        for step in ch.steps(2):
            step.put("T", np.ones((2, 3)), dims=("y", "x"), attrs=values if step.version == 0 else None)
            step.put("t", 0.5, dims=())
            step.put("z", np.arange(3), dims="x", attrs={"n": np.float32(0.5), "m": np.arange(2)})
            step.put("plain", np.arange(3))
            step.attrs["time"] = np.float64(step.version / 4)
            assert dict(step.attrs) == {"time": step.version / 4}
        ch.attrs["title"] = "a test"
    with fb.open("heat", channel=channel, observer=True) as ch:
        first, second = ch.open_version(0), ch.open_version(1)
        found = first.variables
        assert list(found) == ["T", "t", "z", "plain"]
        assert found["T"].dims == ("y", "x") and found["T"].attrs == values
        assert [type(found["T"].attrs[k]) for k in ("valid", "level", "scale")] == [bool, int, float]
        assert found["t"].dims == () and found["plain"].dims is None and found["plain"].attrs == {}
        assert found["z"].dims == ("x",) and found["z"].attrs == {"n": 0.5, "m": [0, 1]}
        assert second.variables["T"].attrs == {} and second.variables["T"].dims == ("y", "x")
        assert dict(first.attrs) == {"time": 0.0} and dict(second.attrs) == {"time": 0.25}
        assert dict(ch.attrs) == {"title": "a test"}
        with pytest.raises(errors.Usage):
            first.attrs["time"] = 1
    fb.destroy("heat")


def test_what_is_reserved_or_put_together_is_described_by_a_call():
    with fb.open("heat", "w", retention="forever") as ch:
        for step in ch.steps(1):
            step.reserve("T", (2, 2))[:] = 1
            step.put_many(["a", "b"], np.zeros((2, 4)))
            step.describe("T", dims=("y", "x"))
            step.describe("a", attrs={"units": "m"})
            step.describe("a")
        with fb.open("heat", observer=True) as r, r.open_version(0) as got:
            assert got.variables["T"].dims == ("y", "x") and got.variables["a"].attrs == {"units": "m"}
        with pytest.raises(errors.StepState):
            step.describe("T", dims=("y", "x"))
        with pytest.raises(errors.StepState):
            step.attrs["time"] = 1


@pytest.mark.parametrize(
    ("keywords", "error"),
    [
        ({"dims": ("x",)}, errors.Usage),
        ({"dims": ("y", "")}, errors.Usage),
        ({"attrs": {"": 1}}, errors.Usage),
        ({"attrs": {"a": 2**63}}, errors.Usage),
        ({"attrs": {"a": None}}, errors.Usage),
        ({"attrs": {"a": [1, "b"]}}, errors.Usage),
        ({"attrs": {1: "b"}}, TypeError),
        ({"attrs": "units"}, TypeError),
        ({"dims": (1, 2)}, TypeError),
        ({"concat": True, "shape": (4, 2)}, errors.Usage),
        ({"concat": True, "start": (0, 0)}, errors.Usage),
    ],
)
def test_what_describes_nothing_is_refused_and_nothing_is_put(keywords, error):
    with fb.open("heat", "w", retention="forever") as ch:
        for step in ch.steps(1):
            with pytest.raises(error):
                step.put("T", np.ones((2, 2)), **keywords)
        with fb.open("heat", observer=True) as r, r.open_version(0) as got:
            assert got.variables == {} and dict(got.attrs) == {}


def test_ranks_put_one_behind_the_other(children, channel):
    code = """
        rank = int(os.environ["FOREBAY_RANK"])
        with fb.open("particles", "w", channel=sys.argv[1], retention="forever") as ch:
            for step in ch.steps(3):
                n = 1000 * rank + step.version
                step.put("x", np.full((n, 2), rank, np.float32), concat=True, dims=("particle", "axis"))
                ids = step.reserve("id", (n,), dtype="int64", concat=True)
                ids[:] = np.arange(n)
        """
    for child in children.group(code, 3, channel):
        child.ok()
    with fb.open("particles", channel=channel, observer=True) as ch:
        for version in range(3):
            with ch.open_version(version) as step:
                counts = [1000 * rank + version for rank in range(3)]
                x = step.variables["x"]
                assert x.shape == (sum(counts), 2) and x.dims == ("particle", "axis")
                assert [p.rank for p in x.pieces] == [0, 1, 2]
                assert [p.start[0] for p in x.pieces] == [0, counts[0], counts[0] + counts[1]]
                assert (step["x"][:, 1] == np.repeat([0, 1, 2], counts)).all()
                ids = np.concatenate([np.arange(n) for n in counts])
                assert (step.get("id") == ids).all() and step.get("id").dtype == np.int64
                assert (step["x", counts[0] : counts[0] + 2] == [[1, 1], [1, 1]]).all()


def test_a_number_has_nothing_to_put_one_behind_the_other():
    with fb.open("heat", "w", retention="forever") as ch:
        for step in ch.steps(1):
            with pytest.raises(errors.Usage):
                step.put("t", 0.5, concat=True)
            step.put("a", np.arange(2), concat=True)
            step.put("a", np.arange(3), concat=True)
            with pytest.raises(errors.VariableMismatch):
                step.put("a", np.arange(3))
        with fb.open("heat", observer=True) as r, r.open_version(0) as got:
            assert got["a"].tolist() == [0, 1, 0, 1, 2]
            assert got.view("a", np.s_[2:5]).tolist() == [0, 1, 2]
