"""IR as text: print a module, parse it back to an equal one. The grammar is this page.

Spaces and line ends mean nothing, `#` starts a comment. DIM is an index expression as core.dim prints it
(4*n + m//2, min(a, b), x % 3); NAME an identifier or anything in backquotes; STR a JSON string; REF is
%name or @name, with STR after the sigil for odd names; DTYPE f32, i64, bool ...

dump     = ['compile' JSON] module                                    JSON: see dump.py
module   = 'module' STR '{' {sym | weight | library | kernel | graph} '}'
sym      = 'sym' NAME 'in' range ['hot' '(' INT,+ ')'] ['from' STR]
range    = INT '..' (INT | '*') ['%' INT]                             low, high, divisor
weight   = 'weight' REF ':' DTYPE '[' INT,* ']' '=' data ['from' STR]
data     = '[' element,* ']' | 'bytes' STR(hex) | 'sha256' STR        row-major; up to 64 elements inline
library  = 'library' STR 'adapter' STR 'files' STR* ';'

graph    = 'graph' REF '(' value,* ')' '->' '(' (REF ['as' STR]),* ')' '{' node* '}'
value    = REF ':' placed
placed   = type ['on' STR] ['from' STR]                               on: a unit; from: the ONNX name
type     = DTYPE '[' DIM,* ']'
node     = [REF,+ '='] OP '(' (REF | '_'),* ')' ['{' (KEY '=' attr),* '}']
           [':' placed,+] ['at' STR] region*                          at: the ONNX node; '_': absent
region   = as graph, with the word 'region'
attr     = INT | FLOAT | 'true' | 'false' | 'none' | STR | ':' DTYPE | 'dim' DIM
         | '[' DIM,+ ']'                                              a tuple of Dims
         | '(' attr,* ')'                                             any other tuple

kernel   = 'kernel' REF '(' (NAME ':' 'dim' 'in' range),* input,* ')' '->' '(' output,* ')'
           ['scratch' '(' buffer,* ')'] ['origin' STR] ['hot' '(' case,+ ')'] ['schedule' STR]
           '{' stmt* '}'
case     = REF '(' (NAME '=' INT),+ ')'                               where dims are so, the kernel REF runs
input    = buffer ['laid' STR 'of' '[' DIM,* ']' ['ahead' INT]]       a weight's axes: layout.py
output   = buffer ['ahead' INT]
buffer   = NAME ':' [SPACE] type                                      SPACE: global (scratch) if unsaid
stmt     = LEVEL NAME 'in' DIM scope                                  unit group lane vector serial unroll
         | 'tiles' LEVEL '(' NAME ',' NAME ')' 'in' DIM ':' ('balanced' | 'greedy') '(' sizes,* ')' scope
         | 'block' ['by' NAME] ['let' '(' (NAME '=' expr 'in' DIM '..' DIM),* ')'] ['if' guard] scope
         | NAME '[' DIM,* ']' [INTRINSIC] '=' expr ['if' guard]       y[i] add= e accumulates
scope    = '{' (SPACE NAME ':' type)* stmt* '}'
sizes    = INT | INT '..' INT                                         12 .. 9 is 12, 11, 10, 9
guard    = '(' (DIM '<=' DIM '<' DIM),* ')'
expr     = expr ('+' | '-' | '*' | '/') expr | primary                add sub mul div, usual precedence
primary  = NUMBER ':' DTYPE | '[' DIM ']' ':' DTYPE                   a constant; an index as a value
         | load | '(' load 'if' guard ['else' expr] ')' | '(' expr ')'
         | INTRINSIC [':' DTYPE] '(' expr,* ')'                       DTYPE where the rule gives none
         | KIND [':' DTYPE] (NAME 'in' DIM),* '{' expr '}'            sum prod max min any all argmax
         | 'let' NAME '=' expr 'in' DIM '..' DIM '{' expr '}'         argmin argmax_last argmin_last
load     = NAME '[' DIM,* ']' [':' DTYPE]
"""

from __future__ import annotations

from smelt.core.ir.text_parse import parse_expr, parse_kernel, parse_module, parse_stmt
from smelt.core.ir.text_print import print_expr, print_kernel, print_module, print_stmt

__all__ = [
    "parse_expr", "parse_kernel", "parse_module", "parse_stmt",
    "print_expr", "print_kernel", "print_module", "print_stmt",
]
