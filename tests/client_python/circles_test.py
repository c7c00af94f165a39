# SPDX-License-Identifier: Apache-2.0
"""No module of the package imports another that imports it, not even for its types."""

import ast
import pathlib
import unittest

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "client" / "python" / "lintel"


def imported_modules(source, package="lintel"):
    """The names of the package's modules that a module names in imports, wherever they stand."""
    modules = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(filter(None, [package if node.level else "", node.module]))
            # `from lintel import x`: x may be a module.
            modules |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    prefix = package + "."
    return {name[len(prefix) :].split(".")[0] for name in modules if name.startswith(prefix)}


def circle(graph):
    """Modules of which each imports the next and the last the first; empty where there are none."""
    done, path = set(), []

    def visit(module):
        if module in path:
            return path[path.index(module) :]
        if module in done:
            return []
        path.append(module)
        for other in sorted(graph.get(module, ())):
            found = visit(other)
            if found:
                return found
        done.add(path.pop())
        return []

    for module in sorted(graph):
        found = visit(module)
        if found:
            return found
    return []


class CirclesTest(unittest.TestCase):
    def test_the_modules_import_in_no_circle(self):
        sources = {file.stem: file.read_text() for file in PACKAGE.glob("*.py")}
        graph = {module: imported_modules(source) for module, source in sources.items()}
        self.assertIn("generation", graph["client"])
        self.assertIn("_channel", graph["_calls"])
        self.assertEqual(circle(graph), [])

    def test_a_circle_is_found(self):
        self.assertEqual(circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}), ["b", "c"])
        self.assertEqual(circle({"a": {"b", "c"}, "b": {"c"}}), [])

    def test_imports_are_seen_wherever_they_stand(self):
        source = (
            "from lintel import _a, _b as b\nfrom lintel.c import D\nimport lintel.e.f\n"
            "from . import g\nfrom .h import I\nimport grpc\n"
            "if TYPE_CHECKING:\n    from lintel.j import K\n"
        )
        found = imported_modules(source)
        self.assertLessEqual({"_a", "_b", "c", "e", "g", "h", "j"}, found)
        self.assertNotIn("grpc", found)


if __name__ == "__main__":
    unittest.main()
