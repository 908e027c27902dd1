"""Types, constants and functions of typed instructions in, the words of a SPIR-V 1.3 module out.

A module is what Vulkan 1.1 takes: logical addressing, one entry point, structured control flow. Values
have kinds, each with one SPIR-V type: 'b' bool, 'u' 32 bits (signed or not is said by the instruction),
'w' the two halves of 64 bits (low, high), 'f' and 'd' floats of 32 and 64 bits. 'd' needs a feature, and so
do the kinds that memory alone has: 's' and 'y', 16 and 8 bits, and 'h', a float of 16.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from smelt.targets.vulkan.features import FEATURES, KEEPS_ZERO_INF_NAN

SPIRV_MAGIC, SPIRV_VERSION, GENERATOR = 0x07230203, 0x00010300, 0

OPCODES = {
    "Extension": 10, "ExtInstImport": 11, "ExtInst": 12, "MemoryModel": 14, "EntryPoint": 15,
    "ExecutionMode": 16, "Capability": 17, "TypeVoid": 19, "TypeBool": 20, "TypeInt": 21, "TypeFloat": 22,
    "TypeVector": 23, "TypeArray": 28, "TypeRuntimeArray": 29, "TypeStruct": 30, "TypePointer": 32,
    "TypeFunction": 33, "ConstantTrue": 41, "ConstantFalse": 42, "Constant": 43, "ConstantComposite": 44,
    "SpecConstant": 50, "SpecConstantComposite": 51, "Function": 54, "FunctionParameter": 55,
    "FunctionEnd": 56, "FunctionCall": 57, "Variable": 59, "Load": 61, "Store": 62, "AccessChain": 65,
    "Decorate": 71, "MemberDecorate": 72, "CompositeConstruct": 80, "CompositeExtract": 81,
    "ConvertFToU": 109, "ConvertFToS": 110, "ConvertSToF": 111, "ConvertUToF": 112, "UConvert": 113,
    "SConvert": 114, "FConvert": 115,
    "Bitcast": 124, "SNegate": 126, "FNegate": 127, "IAdd": 128, "FAdd": 129, "ISub": 130, "FSub": 131,
    "IMul": 132, "FMul": 133, "UDiv": 134, "SDiv": 135, "FDiv": 136, "UMod": 137, "UMulExtended": 151,
    "LogicalEqual": 164, "LogicalNotEqual": 165, "LogicalOr": 166, "LogicalAnd": 167, "LogicalNot": 168,
    "Select": 169, "IEqual": 170, "INotEqual": 171, "SGreaterThan": 173, "SGreaterThanEqual": 175,
    "ULessThan": 176, "SLessThan": 177, "SLessThanEqual": 179, "FOrdEqual": 180, "FUnordNotEqual": 183,
    "FOrdLessThan": 184, "FOrdGreaterThan": 186, "FOrdLessThanEqual": 188, "FOrdGreaterThanEqual": 190,
    "ShiftRightLogical": 194, "ShiftRightArithmetic": 195, "ShiftLeftLogical": 196, "BitwiseOr": 197,
    "BitwiseXor": 198, "BitwiseAnd": 199, "Not": 200, "BitFieldSExtract": 202, "ControlBarrier": 224,
    "AtomicLoad": 227, "AtomicXor": 242, "Phi": 245, "LoopMerge": 246, "SelectionMerge": 247, "Label": 248,
    "Branch": 249, "BranchConditional": 250, "ReturnValue": 254, "Return": 253,
    "GroupNonUniformElect": 333, "GroupNonUniformIAdd": 349, "GroupNonUniformFAdd": 350,
    "GroupNonUniformIMul": 351, "GroupNonUniformFMul": 352, "GroupNonUniformSMin": 353,
    "GroupNonUniformUMin": 354, "GroupNonUniformSMax": 356, "GroupNonUniformUMax": 357,
    "GroupNonUniformLogicalAnd": 362, "GroupNonUniformLogicalOr": 363,
}  # fmt: skip
GLSL = {
    "RoundEven": 2, "Trunc": 3, "FAbs": 4, "Floor": 8, "Ceil": 9, "Sqrt": 31, "FindUMsb": 75,
}  # fmt: skip
SHADER = 1
FLOAT_CONTROLS, SIGNED_ZERO_INF_NAN = "SPV_KHR_float_controls", 4466
"""An extension and its capability: that -0, infinities and NaN are kept. The driver takes
them out again for devices that do not promise it (adapt in vulkan_driver.c)."""

INPUT, WORKGROUP, PRIVATE, FUNCTION, PUSH_CONSTANT, STORAGE_BUFFER = 1, 4, 6, 7, 9, 12
SPEC_ID, BLOCK, ARRAY_STRIDE, BUILT_IN, ALIASED, COHERENT = 1, 2, 6, 11, 20, 23
NON_WRITABLE, BINDING, DESCRIPTOR_SET, MEMBER_OFFSET, NO_CONTRACTION = 24, 33, 34, 35, 42
NUM_WORKGROUPS, WORKGROUP_SIZE, WORKGROUP_ID, LOCAL_INVOCATION_ID = 24, 25, 26, 27
NUM_SUBGROUPS, SUBGROUP_ID = 38, 40

NARROW_BYTES = {"s": 2, "y": 1, "h": 2}
"""Of the kinds that memory alone has."""


def text_words(text: str) -> list[int]:
    """A literal string: UTF-8, ended by zeros."""
    raw = text.encode() + b"\0"
    raw += bytes(-len(raw) % 4)
    return list(struct.unpack(f"<{len(raw) // 4}I", raw))


def instruction(op: str, *operands: int) -> list[int]:
    """The words of one instruction."""
    return [len(operands) + 1 << 16 | OPCODES[op], *operands]


class SpirvModule:
    """The parts of a module that functions share. Ids count from 1; the same request gives the same id."""

    def __init__(self) -> None:
        self._next = 1
        self._globals: list[int] = []
        self._decorations: list[int] = []
        self._seen: dict[tuple[object, ...], int] = {}
        self._features: set[str] = set()
        self._functions: list[list[int]] = []
        self._named: dict[str, int] = {}
        self.rounds: dict[str, int] = {}
        """Of each function by name: the rounds of all loops that a call may run, at most."""
        self.glsl = self.fresh()

    def fresh(self) -> int:
        """A new id."""
        self._next += 1
        return self._next - 1

    def decorate(self, target: int, decoration: int, *operands: int) -> None:
        self._decorations += instruction("Decorate", target, decoration, *operands)

    def declare(self, op: str, *operands: int, typed: int | None = None, again: bool = False) -> int:
        """A type, constant or global variable; typed: its result type. again: a second one of the same
        operands is another."""
        key = (op, typed, *operands)
        if key in self._seen and not again:
            return self._seen[key]
        result = self.fresh()
        head = (result,) if typed is None else (typed, result)
        self._globals += instruction(op, *head, *operands)
        if not again:
            self._seen[key] = result
        return result

    # -- types

    def type(self, kind: str) -> int:
        """The type of a kind of values; 'v' is void, 'x' (for three numbers) what built-in variables hold."""
        match kind:
            case "v":
                return self.declare("TypeVoid")
            case "b":
                return self.declare("TypeBool")
            case "u":
                return self.declare("TypeInt", 32, 0)
            case "w":
                return self.declare("TypeVector", self.type("u"), 2)
            case "x":
                return self.declare("TypeVector", self.type("u"), 3)
            case "c":
                return self.declare("TypeVector", self.type("b"), 2)
            case "p":
                return self.declare("TypeStruct", self.type("u"), self.type("u"))
            case "f":
                return self.declare("TypeFloat", 32)
            case "d":
                self.require("float64")
                return self.declare("TypeFloat", 64)
            case "s" | "y":
                return self.declare("TypeInt", NARROW_BYTES[kind] * 8, 0)
            case "h":
                return self.declare("TypeFloat", 16)
        raise AssertionError(kind)

    def pointer(self, storage: int, to: int) -> int:
        return self.declare("TypePointer", storage, to)

    def array(self, kind: str, count: int) -> int:
        """An array as memory of a function or of a group holds it; it has no layout."""
        return self.declare("TypeArray", self.type(kind), self.constant("u", count))

    def block(self, storage: int, count: int | None, kind: str = "u") -> int:
        """The pointer to a struct of one array of words, or of a kind that memory alone has; count None: as
        many as the buffer has."""
        key = ("block", storage, count, kind)
        if key in self._seen:
            return self._seen[key]
        element = self.type(kind)
        if count is None:
            words = self.declare("TypeRuntimeArray", element, again=True)
        else:
            words = self.declare("TypeArray", element, self.constant("u", count), again=True)
        self.decorate(words, ARRAY_STRIDE, NARROW_BYTES.get(kind, 4))
        block = self.declare("TypeStruct", words, again=True)
        self.decorate(block, BLOCK)
        self._decorations += instruction("MemberDecorate", block, 0, MEMBER_OFFSET, 0)
        found = self._seen[key] = self.pointer(storage, block)
        return found

    def global_variable(self, storage: int, pointer: int, *initial: int) -> int:
        return self.declare("Variable", storage, *initial, typed=pointer, again=True)

    def built_in(self, which: int, kind: str = "x") -> int:
        """An input variable, of three numbers or of another kind."""
        key = ("built-in", which)
        if key not in self._seen:
            self._seen[key] = self.global_variable(INPUT, self.pointer(INPUT, self.type(kind)))
            self.decorate(self._seen[key], BUILT_IN, which)
        return self._seen[key]

    # -- constants

    def constant(self, kind: str, value: int | float) -> int:
        """A constant of a kind; of 'w' its 64 bits."""
        if kind == "b":
            return self.declare("ConstantTrue" if value else "ConstantFalse", typed=self.type("b"))
        if kind == "w":
            halves = (self.constant("u", int(value) >> shift & 0xFFFFFFFF) for shift in (0, 32))
            return self.declare("ConstantComposite", *halves, typed=self.type("w"))
        if kind == "u":
            return self.declare("Constant", int(value) & 0xFFFFFFFF, typed=self.type("u"))
        code = {"f": "<f", "d": "<d"}[kind]
        words = struct.unpack(f"<{struct.calcsize(code) // 4}I", struct.pack(code, value))
        return self.declare("Constant", *words, typed=self.type(kind))

    def specialised(self, number: int, value: int) -> int:
        """A constant that pipelines may replace by another, by its number."""
        key = ("specialised", number)
        if key not in self._seen:
            self._seen[key] = self.declare("SpecConstant", value, typed=self.type("u"), again=True)
            self.decorate(self._seen[key], SPEC_ID, number)
        return self._seen[key]

    def workgroup_size(self, x: int) -> None:
        one = self.constant("u", 1)
        size = self.declare("SpecConstantComposite", x, one, one, typed=self.type("x"), again=True)
        self.decorate(size, BUILT_IN, WORKGROUP_SIZE)

    def table(self, values: Sequence[int]) -> int:
        """A variable with constant words in it."""
        key = ("table", *values)
        if key not in self._seen:
            array = self.array("u", len(values))
            words = self.declare("ConstantComposite", *(self.constant("u", v) for v in values), typed=array)
            self._seen[key] = self.global_variable(PRIVATE, self.pointer(PRIVATE, array), words)
        return self._seen[key]

    # -- the whole

    def add(self, name: str, words: list[int], result: int) -> int:
        """A function that is called by this name."""
        self._functions.append(words)
        self._named[name] = result
        return result

    def named(self, name: str) -> int | None:
        return self._named.get(name)

    def require(self, feature: str) -> None:
        """The module is for devices with this feature."""
        self._features.add(feature)

    @property
    def features(self) -> frozenset[str]:
        """What a device must have, by the names of FEATURES."""
        return frozenset(self._features)

    def words(self, entry: str, function: int, lanes: int, interface: Sequence[int]) -> list[int]:
        """The module, with one entry point. interface: its input variables."""
        head = [SPIRV_MAGIC, SPIRV_VERSION, GENERATOR, self._next, 0]
        needs = [FEATURES[name] for name in FEATURES if name in self._features]
        for capability in (SHADER, *(c for f in needs for c in f.capabilities), SIGNED_ZERO_INF_NAN):
            head += instruction("Capability", capability)
        for extension in (FLOAT_CONTROLS, *(f.extension for f in needs if f.extension)):
            head += instruction("Extension", *text_words(extension))
        head += instruction("ExtInstImport", self.glsl, *text_words("GLSL.std.450"))
        head += instruction("MemoryModel", 0, 1)
        head += instruction("EntryPoint", 5, function, *text_words(entry), *interface)
        for mode, bits in ((KEEPS_ZERO_INF_NAN, 32), *(m for f in needs for m in f.modes)):
            head += instruction("ExecutionMode", function, mode, bits)
        head += instruction("ExecutionMode", function, 17, lanes, 1, 1)
        body = [w for f in self._functions for w in f]
        return head + self._decorations + self._globals + body
