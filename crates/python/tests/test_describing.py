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
        with pytest.raises(TypeError):
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
        ({"attrs": {"a": b"bytes"}}, errors.Usage),
        ({"attrs": {"a": [True, False]}}, errors.Usage),
        ({"attrs": {"a": np.array([True])}}, errors.Usage),
        ({"attrs": {"a": [2**63]}}, errors.Usage),
        ({"attrs": {"a": np.array([2**63], "u8")}}, errors.Usage),
        ({"attrs": {"a": [2**53 + 1, 0.5]}}, errors.Usage),
        ({"attrs": {"a": np.datetime64("2000-01-01", "ns")}}, errors.Usage),
        ({"attrs": {"a": [[1, 2], [3, 4]]}}, errors.Usage),
        ({"attrs": {"a": {"b": 1}}}, errors.Usage),
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


@pytest.mark.parametrize("tier", ["dram", "file", "files"])
def test_reservations_are_concatenated_in_their_order(tier, tmp_path):
    options = {"channel": "files"} if tier == "files" else {"tier": tier}
    path = "heat" if tier == "dram" else tmp_path / "heat"
    with fb.open(path, "w", retention="forever", **options) as ch:
        for step in ch.steps(1):
            for i in range(4):
                step.reserve("x", 1, dtype="i4", concat=True)[:] = i
            first, second = (step.reserve("y", 1, dtype="i4", concat=True) for _ in range(2))
            first[:], second[:] = 10, 20
            with pytest.raises(errors.StepState, match="not committed"):
                step.commit(second)
            with pytest.raises(errors.StepState, match="not committed"):
                step.put("y", np.zeros(1, "i4"), concat=True)
            step.commit(first)
            step.commit(second)
            step.put("y", np.full(1, 30, "i4"), concat=True)
        with fb.open(path, observer=True, **({} if tier != "files" else options)) as r, r[0] as got:
            assert got.get("x").tolist() == [0, 1, 2, 3] and got.get("y").tolist() == [10, 20, 30]


def test_a_put_that_fails_describes_nothing():
    with fb.open("heat", "w", retention="forever") as ch:
        for step in ch.steps(1):
            with pytest.raises(errors.Usage):
                step.put("T", np.zeros((2, 3)), start=(0, 0), dims=("y", "x"), attrs={"units": "K"})
            step.put("T", np.zeros(3), dims=("x",))
        with fb.open("heat", observer=True) as r, r[0] as got:
            assert got.variables["T"].dims == ("x",) and got.variables["T"].attrs == {}


def test_names_of_our_own_are_refused():
    with fb.open("heat", "w", retention="forever") as ch:
        for step in ch.steps(1):
            for name in (".forebay/descriptions/1", ".forebay/x"):
                for call in (
                    lambda name=name: step.put(name, np.zeros(1, "u1")),
                    lambda name=name: step.put(name, np.zeros(1, "u1"), concat=True),
                    lambda name=name: step.put_many([name], np.zeros((1, 1))),
                    lambda name=name: step.reserve(name, (1,)),
                    lambda name=name: step.describe(name, dims=("x",)),
                ):
                    with pytest.raises(errors.BadName):
                        call()


def test_ranks_that_disagree_on_one_variable_leave_all_others_readable(children):
    code = """
        rank = int(os.environ["FOREBAY_RANK"])
        with fb.open("heat", "w", retention="forever") as ch:
            for step in ch.steps(1):
                step.put("T", np.zeros(2), shape=(4,), start=(2 * rank,), dims=("x" if rank else "y",))
                step.put("U", np.ones(2), shape=(4,), start=(2 * rank,), dims=("x",))
                step.attrs["time"] = 0.5
        """
    for child in children.group(code, 2):
        child.ok()
    with fb.open("heat", observer=True) as r, r[0] as step:
        assert list(step) == step.keys() == ["T", "U"] and "T" in step and repr(step) == "<forebay.ReadStep 0: T, U>"
        assert step["U"].dims == ("x",) and step.attrs["time"] == 0.5 and r.select(time=0.5).version == 0
        assert step.get("T").sum() == 0
        for ask in (lambda: step["T"], lambda: step.variables, lambda: step.variable("T")):
            with pytest.raises(errors.VariableMismatch):
                ask()


def test_many_attributes_are_read_at_once():
    with fb.open("heat", "w", retention="forever") as ch:
        for step in ch.steps(1):
            step.put("T", 1.0)
            for i in range(2000):
                step.attrs[f"a{i}"] = i
        with fb.open("heat", observer=True) as r, r[0] as got:
            attributes = got.attrs
            assert dict(attributes) == {f"a{i}": i for i in range(2000)} and attributes is not got.attrs


def test_a_text_of_an_endless_shape_is_an_error():
    with fb.open("heat", "w", retention="forever") as ch:
        for step in ch.steps(1):
            step.put("note", "abc", shape=(2**60,), start=(0,))
        with fb.open("heat", observer=True) as r, r[0] as got:
            with pytest.raises(errors.TierFull):
                got.text("note")
            assert got.variables["note"].nbytes == 2**60
