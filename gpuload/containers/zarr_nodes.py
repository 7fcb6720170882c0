"""The arrays of a Zarr hierarchy: by consolidated metadata, or by listing its groups."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuload.containers.zarr_json import Document, load, shown
from gpuload.errors import FormatError, MemoryLimitError, RemoteError
from gpuload.sources.listing import ListedStore, is_inside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuload.options import Options
    from gpuload.sources.stores import Store

__all__ = ["METADATA", "Hierarchy", "Node", "hierarchy"]

#: Keys of which a Zarr group or array has one at least.
METADATA = ("zarr.json", ".zarray", ".zmetadata", ".zgroup")
#: Groups in groups. (A link to a folder above itself makes endless ones.)
_DEEPEST = 32
#: Memory that a node takes.
_BYTES_A_NODE = 4 << 10
#: Documents that are requested side by side from a store that waits for a network.
_IN_FLIGHT = 32


@dataclass(frozen=True)
class Node:
    """An array.

    Attributes
    ----------
    name : str
        Its path in the hierarchy; empty for the root.
    document : Document or None
        Its metadata; None if that is broken.
    error : str
        Why; empty if it is not.
    """

    name: str
    document: Document | None
    error: str = ""


@dataclass
class Hierarchy:
    """What is in a store.

    Attributes
    ----------
    version : int
        Of the format: 2 or 3.
    nodes : list of Node
        The arrays, by their names.
    consolidated : bool
        Whether one document told of all of them.
    warnings : list of str
        What was left out.
    """

    version: int
    nodes: list[Node] = field(default_factory=list)
    consolidated: bool = False
    warnings: list[str] = field(default_factory=list)


def hierarchy(store: Store, options: Options) -> Hierarchy:
    """Return the arrays of a store.

    Parameters
    ----------
    store : Store
        A Zarr group or array.
    options : Options
        `memory_limit` bounds the metadata.

    Raises
    ------
    FormatError
        If the root is none, or its metadata is broken.
    MemoryLimitError
        If there is too much.
    """
    sizes = dict(zip(METADATA, store.sizes(METADATA).tolist(), strict=True))
    reader = _Reader(store, options.memory_limit)
    if sizes["zarr.json"] >= 0:
        found = reader.version_3(sizes["zarr.json"])
    elif sizes[".zarray"] >= 0:
        root = reader.load(".zarray", sizes[".zarray"])
        found = Hierarchy(2, [Node("", root)])
    elif sizes[".zmetadata"] >= 0:
        found = reader.consolidated_2(sizes[".zmetadata"])
    elif sizes[".zgroup"] >= 0:
        _check_version(reader.load(".zgroup", sizes[".zgroup"]), 2)
        found = reader.listed(2)
    else:
        wanted = ", ".join(METADATA)
        raise FormatError(f"no Zarr group or array: none of {wanted} is there", source=store.name)
    found.nodes.sort(key=lambda node: node.name)
    return found


class _Reader:
    def __init__(self, store: Store, limit: int) -> None:
        self._store, self._limit = store, limit
        self._left = max(1 << 10, limit // _BYTES_A_NODE)

    def load(self, key: str, size: int) -> Document:
        return load(self._store, key, size, self._limit)

    def version_3(self, size: int) -> Hierarchy:
        root = self.load("zarr.json", size)
        _check_version(root, 3)
        if _node_type(root) == "array":
            return Hierarchy(3, [Node("", root)])
        told = root.data.get("consolidated_metadata")
        if told is None:
            return self.listed(3)
        if not isinstance(told, dict) or told.get("kind") != "inline":
            raise root.error("'consolidated_metadata' is of a kind other than 'inline'")
        return Hierarchy(3, self._consolidated(root, told.get("metadata"), 3), consolidated=True)

    def consolidated_2(self, size: int) -> Hierarchy:
        """Read a .zmetadata, the consolidated metadata that zarr-python writes for version 2."""
        root = self.load(".zmetadata", size)
        if root.data.get("zarr_consolidated_format") != 1:
            raise root.error("'zarr_consolidated_format' is not 1")
        nodes = self._consolidated(root, root.data.get("metadata"), 2)
        return Hierarchy(2, nodes, consolidated=True)

    def _consolidated(self, root: Document, told: Any, version: int) -> list[Node]:
        if not isinstance(told, dict):
            raise root.error(f"the consolidated metadata is {shown(told)}, not an object")
        nodes = []
        for key, value in told.items():
            name = key if version == 3 else _array_of(key)
            if name is not None:
                nodes.append(_told(root, name, value, version))
        self._count(len(nodes))
        return [node for node in nodes if node is not None]

    def listed(self, version: int) -> Hierarchy:
        """List groups, one after the other."""
        found = Hierarchy(version)
        if not isinstance(self._store, ListedStore):
            raise FormatError(
                "a group without consolidated metadata, in a store that cannot be listed",
                source=self._store.name,
            )
        groups = [""]
        while groups:
            group = groups.pop()
            if group.count("/") >= _DEEPEST:
                message = f"{self._store.location(group)}: a group that deep is not looked into"
                found.warnings.append(message)
                continue
            groups += self._look(self._store, group, found)
        return found

    def _look(self, store: ListedStore, group: str, found: Hierarchy) -> list[str]:
        """Add the arrays in a group; return the groups."""
        start = f"{group}/" if group else ""
        inside = [start + name for name in store.folders(group) if is_inside(name)]
        self._count(len(inside))
        if found.version == 2:
            return self._look_2(inside, found)
        keys = [f"{name}/zarr.json" for name in inside]
        groups = []
        for name, document in zip(inside, self._load_all(keys), strict=True):
            node = None if document is None else _of_type(name, document)
            if isinstance(node, Node):
                found.nodes.append(node)
            elif document is not None:
                groups.append(name)
        return groups

    def _look_2(self, inside: list[str], found: Hierarchy) -> list[str]:
        documents = self._load_all([f"{name}/.zarray" for name in inside])
        pairs = list(zip(inside, documents, strict=True))
        for name, document in pairs:
            if isinstance(document, Document):
                found.nodes.append(Node(name, document))
            elif document is not None:
                found.nodes.append(Node(name, None, f"{document}"))
        others = [name for name, document in pairs if document is None]
        sizes = self._store.sizes([f"{name}/.zgroup" for name in others]).tolist()
        return [name for name, size in zip(others, sizes, strict=True) if size >= 0]

    def _load_all(self, keys: Sequence[str]) -> list[Document | Exception | None]:
        """Return documents, errors for those that are broken, None for those that are not there."""
        sizes = self._store.sizes(keys).tolist()
        if not self._store.remote or len(keys) < 2:
            return [self._try(key, size) for key, size in zip(keys, sizes, strict=True)]
        with ThreadPoolExecutor(_IN_FLIGHT) as threads:
            return list(threads.map(self._try, keys, sizes))

    def _try(self, key: str, size: int) -> Document | Exception | None:
        if size < 0:
            return None
        try:
            return self.load(key, size)
        except RemoteError:
            raise
        except (FormatError, MemoryLimitError, OSError) as error:
            return error

    def _count(self, nodes: int) -> None:
        self._left -= nodes
        if self._left < 0:
            raise MemoryLimitError(
                f"{self._store.name}: the metadata of all groups takes more than memory_limit "
                f"({self._limit} bytes); raise it (--memory-limit), or open a group inside"
            )


def _of_type(name: str, document: Document | Exception) -> Node | None:
    """Return a node for an array, or for what is broken; None for a group."""
    if not isinstance(document, Document):
        return Node(name, None, f"{document}")
    try:
        kind = _node_type(document)
    except FormatError as error:
        return Node(name, None, f"{error}")
    return Node(name, document) if kind == "array" else None


def _told(root: Document, name: str, value: Any, version: int) -> Node | None:
    """Return the node that consolidated metadata tells of."""
    where = f"{root.where}: {name!r}"
    if name and not is_inside(name):
        return Node(name, None, f"{where}: the name points out of the store")
    if not isinstance(value, dict):
        return Node(name, None, f"{where}: its metadata is no object")
    document = Document(where, value)
    return Node(name, document) if version == 2 else _of_type(name, document)


def _array_of(key: str) -> str | None:
    """Return the name of the array that a key of version 2 is the metadata of."""
    name, _, last = key.rpartition("/")
    return name if last == ".zarray" else None


def _check_version(document: Document, version: int) -> None:
    if document.require("zarr_format") != version:
        told = shown(document.data["zarr_format"])
        raise document.error(f"'zarr_format' is {told}, not {version}")


def _node_type(document: Document) -> str:
    kind: str = document.choice("node_type", ("array", "group"), None)
    return kind
