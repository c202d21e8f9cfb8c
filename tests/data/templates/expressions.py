#!/usr/bin/env python3
"""Records what transformers' Jinja environment makes of expressions and templates: expressions.json.

Run: pip install transformers jinja2; python3 expressions.py. An output of null means that Jinja2 fails."""

import json
import os

from transformers.utils.chat_template_utils import _compile_jinja_template

VARIABLES = {
    "none": None, "text": "ab", "number": 3, "real": 2.5, "flag": True,
    "words": ["b", "a", "C"], "map": {"b": 1, "a": 2}, "users": [{"name": "x", "n": 2}, {"name": "Y", "n": 1}, {"name": "z"}],
    "deep": {"a": [1, {"b": None}], "c": "d"}, "unicode": "né\u00df\u4e2d\U0001f600", "lines": "a\n\nb\nc", "html": "<a href=\"x\">'&'</a>",
}

EXPRESSIONS = """
none is iterable|none is sequence|none is mapping|none is none|text is iterable|text is sequence|text is mapping|map is iterable
map is sequence|map is mapping|words is iterable|words is sequence|words is mapping|number is iterable|missing is iterable
missing is sequence|missing is mapping|range(3) is sequence|map.items() is sequence|map.items() is iterable|number is number
flag is number|flag is integer|real is float|flag is boolean|none is defined|missing is defined|missing is undefined|map.zz is defined
users[2].n is defined|users[9] is defined|3 is odd|3 is even|9 is divisibleby(3)|9 is divisibleby 3|'a' is in words|'a' is in(words)
'ab' is lower|'AB' is upper|'a' is eq 'a'|1 is lt 2|2 is ge 2|text is string|range is callable|true is sameas true|1 is true
'upper' is filter|'odd' is test|'zzz' is filter|words is not mapping|not words is mapping
1|1.0|1.5|100000.0|1e15|1e16|1e16 + 1|1.5e-7|0.0001|0.00001|-0.0|1e100|1/3|2**0.5|10/2|7//2|-7//2|7//-2|-7//-2|7%3|-7%3|7%-3|7.5//2|-7.5%2
2**10|2**-1|-2**2|2**3**2|1+2*3|(1+2)*3|10-3-2|2*3%4|1 ~ 2|'a' ~ none|1 ~ true|missing ~ 'x'|'a' 'b'|'a' + 'b'|[1] + [2]|(1,) + (2,)
'ab' * 3|3 * 'ab'|[0] * 3|'a' + 1|1 + '1'|none + 1|1 / 0|1 % 0|missing + 1|true + true|1 < 2 < 3|1 < 3 < 2|'a' < 'b'|[1, 2] < [1, 3]|1 < 'a'
1 == 1.0|1 == true|'1' == 1|[1] == [1.0]|{'a': 1} == {'a': 1.0}|none == false|missing == missing|'a' in text|'c' not in text|1 in [1.0]|'a' in map
none in [none]|'x' in none|1 in 'a1'|not 1 in [2]|1 in missing|not true and false|true or 1/0|false and 1/0|0 or 'x'|'' or []|1 and 2
'x' if true|'x' if false|'x' if false else 'y'|1 if 0 else 2 if 0 else 3|[1, 'a', none, true, 1.5]|(1,)|()|[]|{}|{'a': 1, 'a': 2}|{1: 'x', 'y': [2]}
'it\\'s'|['it\\'s']|['"']|['\\'"']|['a\\nb\\t\\\\']|['\\x00\\x7f\\xa0']|[unicode]|['\\u200b']|"\\x41\\101\\u00e9"|'\\q'|'a\\
b'
text[0]|text[-1]|text[9]|text[1:]|text[::-1]|unicode[1:3]|unicode[::-1]|unicode|length|words[::2]|words[::-1]|words[-2:]|words[5:]|words[:-1]|words[1:0:-1]|(1, 2, 3)[1:]|words['a']|map['zz']|none['a']|map.a.b|text.0|words.0|words.1
map.items()|map.keys()|map.values()|map.get('a')|map.get('z')|map.get('z', 5)|map.copy()|map.pop('a')|map.update({})|words.append(1)|words.index('a')|words.count('a')|[1, 1].count(1)|(1, 2).index(2)
text.upper()|'aB'.swapcase()|'hello wORLD-foo bar\\'s'.title()|'hELLO'.capitalize()|'a,b,c'.split(',')|'a,b,c'.split(',', 1)|'a,b,c'.rsplit(',', 1)|' a  b '.split()|' a  b '.split(none, 1)|' a b c '.rsplit(none, 1)|'abc'.split('')
'a-b-c'.partition('-')|'a-b-c'.rpartition('-')|'abc'.partition('x')|'abc'.removeprefix('a')|'abc'.removesuffix('bc')|'7'.zfill(3)|'-7'.zfill(4)|'ab'.ljust(4, '.')|'ab'.rjust(4)|'ab'.center(5, '*')|'abc'.center(6, '*')|'abc'.center(4)
' x '.strip()|'xxaxx'.strip('x')|'xyaxy'.lstrip('yx')|'axx'.rstrip('x')|'\\n\\n a'.lstrip('\\n')|'abc'.startswith('a')|'abc'.startswith(('x', 'ab'))|'abc'.endswith(('x', 'bc'))|'abc'.startswith('b', 1)|'abc'.startswith(['a'])
'abcabc'.replace('b', 'x')|'abcabc'.replace('b', 'x', 1)|'ab'.replace('', '-')|'abcb'.find('b')|'abcb'.rfind('b')|'abc'.find('z')|'abc'.index('c')|'abc'.index('z')|'abcb'.find('b', 2)|'aaa'.count('a')|'aaa'.count('')|'a\\nb\\r\\nc'.splitlines()|'a\\nb'.splitlines(true)|'a\\tb'.expandtabs(4)
','.join(['a', 'b'])|','.join([1])|''.join(words)|'1'.isdigit()|'a1'.isalnum()|'ab'.isalpha()|' '.isspace()|''.isspace()|'Ab C'.istitle()|'AB'.isupper()|'ab1'.islower()|'é'.isascii()|'a_1'.isidentifier()|'½'.isnumeric()|'é'.isprintable()|(1.0).is_integer()
'{} {}'.format(1, 'a')|'{0}{1}{0}'.format('a', 'b')|'{x}'.format(x=1)|'{:>5}|{:<5}|{:^5}'.format('a', 'b', 'c')|'{:05d}'.format(42)|'{:.2f}'.format(3.14159)|'{:,}'.format(1234567)|'{:x}'.format(255)|'{:#x}'.format(255)|'{!r}'.format('a')|'{{}}'.format()|'{:+d}'.format(3)|'{:e}'.format(12345.678)|'{:g}'.format(0.00001)|'{:%}'.format(0.25)|'{a[b]}'.format(a={'b': 1})|'{'.format()|'{}'.format()|'{:*^9}'.format('x')|'{:10}|'.format(5)|'{:d}'.format('a')
'%s' % 'a'|'%s=%d' % ('a', 3)|'%5.2f|' % 3.14159|'%-5s|' % 'a'|'%05d' % 42|'%x' % 255|'%r' % 'a'|'%(a)s' % {'a': 1}|'%%' % ()|'%s' % none|'%d' % 'a'|'%s %s' % ('a',)|'%s' % (1, 2)|'%c' % 'x'|'%+d' % 5|'%e' % 12345.678|'%g' % 1e-5|'%i' % 3.7|'%.3s|' % 'abcdef'
"""

FILTERS = """
words | sort¦words | sort(reverse=true)¦words | sort(case_sensitive=true)¦users | sort(attribute='name') | map(attribute='name') | list¦users | map(attribute='n', default=0) | list¦users | map(attribute='n') | list¦words | map('upper') | list¦words | map('upper') | join('-')
[1, 2, 3] | select('odd') | list¦[1, 2, 3] | reject('odd') | list¦[0, 1, ''] | select | list¦users | selectattr('n') | map(attribute='name') | list¦users | selectattr('n', 'equalto', 2) | list¦users | rejectattr('n', 'defined') | list¦['a', 'b'] | reject('in', ['a']) | list¦users | selectattr('n', 'defined') | list | length
words | first¦words | last¦[] | first¦[] | last is defined¦words | reverse | list¦'abc' | reverse¦words | join¦words | join(', ')¦[1, none, true] | join('|')¦users | join(',', attribute='name')¦[1, 2] | sum¦[1.5, 2] | sum¦users[:2] | sum(attribute='n')¦words | min¦words | max¦[3, 1] | max¦[] | max¦users[:2] | max(attribute='n')
[1, 1, 2] | unique | list¦['a', 'A'] | unique | list¦[1, 2, 3] | batch(2) | list¦[1, 2, 3] | batch(2, 0) | list¦[1, 2, 3] | slice(2) | list¦map | dictsort¦map | dictsort(by='value')¦map | dictsort(reverse=true)¦map | items | list¦map | list¦'ab' | list¦users | groupby('n', default=0) | list
text | upper¦'AB' | lower¦'hello world-foo' | title¦'hELLO' | capitalize¦' a ' | trim¦'xax' | trim('x')¦'x' | center(5)¦'bcb' | replace('b', 'x')¦'bcb' | replace('b', 'x', 1)¦'%s=%d' | format('a', 3)¦'%(a)s' | format(a=1)¦lines | indent¦lines | indent(2, true)¦lines | indent(2, blank=true)¦lines | indent('> ')¦lines | indent(first=true)
'abcdefghij' | truncate(6, true, '..', 0)¦'abc def ghi' | truncate(8, false, '...', 0)¦'short' | truncate¦'a b c' | wordcount¦html | escape¦html | e¦html | striptags¦'a b/c?é' | urlencode¦number | string¦none | string¦'5' | int¦'5.7' | int¦'x' | int¦'x' | int(7)¦'ff' | int(0, 16)¦5.9 | int¦'1.5' | float¦'x' | float¦5 | float¦-3 | abs¦2.5 | round¦3.5 | round¦2.567 | round(2)¦2.1 | round(0, 'ceil')¦5 | round¦25 | round(-1)
missing | default('x')¦none | default('x')¦none | default('x', true)¦'' | d('x', true)¦missing | d¦words | length¦map | length¦text | count¦missing | length¦none | length¦number | length¦words | tojson¦map | tojson¦deep | tojson¦deep | tojson(indent=2)¦deep | tojson(indent=4)¦unicode | tojson¦unicode | tojson(ensure_ascii=true)¦html | tojson¦map | tojson(sort_keys=true)¦deep | tojson(separators=(',', ':'))¦[] | tojson(indent=2)¦{} | tojson(indent=2)¦[[], {}] | tojson(indent=1)¦1.0 | tojson¦1e16 | tojson¦1e-7 | tojson¦true | tojson¦none | tojson¦missing | tojson¦'\\x00\\x1f\\x7f\\u2028' | tojson¦{1: 2, none: 3, true: 4} | tojson¦(1, 2) | tojson¦'\\b\\f' | tojson
1000 | filesizeformat¦text | attr('upper')()¦map | attr('b')¦-1 | abs¦-2.5 | abs | string¦not 'a' | upper¦'a' | upper ~ 'b'¦1 + 2 | string¦[1, 2] | map('string') | list¦[[1, 2], [3]] | sum(start=[])¦['b','a'] | sort | first | upper¦'a' is string and 'b' | upper == 'B'¦dict(a=1, b=2)¦dict([('a', 1)])¦namespace(a=1).a¦range(5) | list¦range(1, 10, 3) | list¦range(5, 0, -2) | list¦range(3)[1]¦range(0) | list¦range(200000)
words | nofilter¦words is notest¦text.nomethod()¦text.nomethod¦text.nomethod.x¦none.x.y¦missing.x¦missing()¦number()¦words()¦-'a'¦-text¦+1¦- 1 | abs¦1 if missing¦text if missing else number¦[missing]¦[missing] | length¦{'a': missing}¦words[missing]¦'a' ~ missing ~ 'b'
users | map(attribute='name') | map('lower') | join(',')¦users[0]['name']¦users[0].name¦users | length > 2¦users[-1].name¦(users | first).name¦users | map(attribute='name') | list | tojson¦(words | list)[0]¦[x for x in words]¦words | join | upper
"""

TEMPLATES = [
    "a\n{% if true %}\nb\n{% endif %}\nc\n", "  {% if true %}  x  {% endif %}  \n y", "{{ 1 }}\n{{ 2 }}\n", "{%- if true -%}\n x \n{%- endif -%}\n y", "a {#- c -#} b", "a\n  {# c #}\n b", "a\n {%+ if true %}b{% endif %}", "{% if true +%}\n b{% endif %}",
    "{% raw %}{{ x }}{% endraw %}", "{% raw -%}\n {{ x }} {%- endraw %} z", "a\r\nb\rc\n\n", "x{{ '\r\n' }}y", "\n{% set x = 1 %}\n{{ x }}", "{{- 1 -}} \n {{- 2 -}}", "{{ {'a': {'b': 1}} }}", "{{ {'a': {}}['a'] }}", "{% set x %}a{{ 1 }}{% endset %}[{{ x }}]", "{% set x | upper %}a{% endset %}{{ x }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set x = 1, 2 %}{{ x }}", "{% for a, b in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}", "{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in map %}{{ k }}{% endfor %}", "{% for c in text %}{{ c }}.{% endfor %}", "{% for x in missing %}x{% else %}none{% endfor %}", "{% for x in none %}x{% endfor %}",
    "{% for x in words %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}", "{% for x in words %}{{ loop.previtem }}{{ loop.nextitem is defined }}{{ loop.cycle('o', 'e') }}{{ loop.depth }};{% endfor %}", "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}",
    "{% for x in words if x != 'a' %}{{ loop.index }}{{ x }}{% else %}no{% endfor %}", "{% for x in words %}{% if x == 'a' %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in words %}{% if x == 'a' %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{{ loop.depth }}{% endif %}{% endfor %}",
    "{% set x = 0 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}", "{% set ns = namespace(x=0) %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "{% if true %}{% set y = 1 %}{% endif %}{{ y }}", "{% set x.y = 1 %}", "{% set ns = namespace() %}{% set ns.a = [1] %}{{ ns.a }}{{ ns.b is defined }}{{ ns['a'] }}",
    "{% macro f(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(b=1, a=2) }}{{ f(1, 2, 3, z=4) }}", "{% macro f(a) %}{{ a }}{% endmacro %}[{{ f() }}]", "{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}x{% endcall %}", "{% macro f() %}{{ caller(1) }}{% endmacro %}{% call(y) f() %}x{{ y }}{% endcall %}",
    "{% set g = 1 %}{% macro f() %}{{ g }}{% endmacro %}{% set g = 2 %}{{ f() }}", "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "{% macro f() %}{% for x in words %}{{ x }}{% endfor %}{% endmacro %}{{ f() | upper }}", "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% filter upper %}a{{ 'b' }}{% endfilter %}",
    "{% generation %}a{% endgeneration %}b", "{%- generation -%} a {%- endgeneration -%}", "{% block x %}a{% endblock %}", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}", "{% set j = joiner('|') %}{{ j() }}a{{ j() }}b", "{{ raise_exception('no') }}", "{% include 'x' %}", "{% do 1 %}", "{{ 1 2 }}", "{% if %}{% endif %}", "{% endif %}", "{{ ", "{% for x in y %}", "{# ",
    "{% for i in range(3) %}{% for j in range(2) %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}", "{% if words %}a{% elif text %}b{% else %}c{% endif %}", "{% if not words %}a{% elif text %}b{% else %}c{% endif %}", "{{ '{{' }}{{ '%}' }}", "{{ \"a\\\"b\" }}", "{{ 'a' if words[0] == 'b' else 'c' }}", "{{ (1, 2) | join('-') }}", "{{ words[0] ~ words[1:] }}",
    "{%- for m in users -%}\n    {%- if m.n is defined %}\n    {{- m.name }}\n    {%- endif %}\n{%- endfor %}\n!", "  {%- set x = 1 %}\n  {{ x }}\n  {% set y = 2 -%}\n  {{ y }}", "a\n\n\n{% if true %}\n\nb{% endif %}\n\n", "{% if true %}a{% endif %}\n{% if true %}b{% endif %}\n", "\t{% if true %}\t\n{% endif %}", "{{ x }}  {% if true %} y{% endif %}", "{{ 'é' ~ '中' }}",
    "{% set x = namespace(v=[]) %}{% for u in users %}{% set x.v = x.v + [u.name] %}{% endfor %}{{ x.v }}", "{{ users | selectattr('name', 'in', ['x', 'z']) | map(attribute='name') | join }}", "{% set a = [1, 2] %}{{ a.append(3) }}{{ a }}", "{% autoescape true %}a{% endautoescape %}", "{{ loop is defined }}", "{{ text.__class__ }}", "{{ ''.__class__.__mro__ }}", "{{ text.format }}",
    "{% for x in words recursive %}{{ loop.index }}{% endfor %}", "{% for i in [1, 2, 3] %}{{ i }}{{ ', ' if not loop.last }}{% endfor %}", "{{ [1, 2][0] }}{{ {'a': 1}.a }}", "{{ 'a\nb' }}", "{{ text|upper|lower }}", "{{text}}{{-text-}} {{text}}", "{%if true%}x{%endif%}", "{{ not missing }}", "{% set x = 'a' if false %}{{ x is defined }}|{{ x }}",
]


def output(source):
    try:
        return _compile_jinja_template(source).render(**VARIABLES)
    except Exception:
        return None


def main():
    sources = ["{{ " + code + " }}" for line in EXPRESSIONS.strip().replace("\\\nb", "\0").split("\n") for code in line.replace("\0", "\\\nb").split("|")]
    sources += ["{{ " + code.strip() + " }}" for line in FILTERS.strip().split("\n") for code in line.split("¦")]
    sources += TEMPLATES
    # The order of attributes in a generator's text, and addresses, are Python's own.
    cases = [[source, text] for source in dict.fromkeys(sources) if (text := output(source)) is None or " at 0x" not in text]
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "expressions.json")
    with open(path, "w") as file:
        file.write(json.dumps({"variables": VARIABLES, "cases": []}, ensure_ascii=False)[:-3] + "[\n")
        file.write(",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]}\n")


main()
