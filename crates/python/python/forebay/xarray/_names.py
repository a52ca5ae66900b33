"""Names in a space that mean something here: groups of variables and attributes, and attributes of ours."""

from forebay.xarray._attributes import HIDDEN

CHARACTERS = HIDDEN + "characters"
"""Of a variable: its bytes are characters, those of one text along the last dimension."""
UNLIMITED = HIDDEN + "unlimited_dims"
"""Of a group: the dimensions that its dataset's encoding calls unlimited."""
GROUP = HIDDEN + "group"
"""Of a group, also of one that holds nothing."""
NONE = "__values__"
"""What xarray calls a variable without a name in a file."""


def group_of(name: str | None) -> str:
    """A group as variables are named by it: "/a/b/" is "a/b", "/" and None are the root."""
    return "/".join(word for word in (name or "").split("/") if word)


def owner(key: str, groups: set[str]) -> tuple[str, str]:
    """The group that an attribute belongs to, and its name there: that of the longest group that it begins with."""
    at = key.rfind("/")
    while at > 0:
        if key[:at] in groups:
            return key[:at], key[at + 1 :]
        at = key.rfind("/", 0, at)
    return "", key
