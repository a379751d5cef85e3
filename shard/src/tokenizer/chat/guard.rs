//! Makes a template's growth visible.
//!
//! Fuel bounds how many instructions a template executes, not what one of them costs: `a ~ a` forty times in a row is
//! a terabyte. The engine offers no hook for operators, so before it compiles the source this module rewrites the
//! expressions that can multiply what they are given into calls of functions that count:
//!
//! ```text
//! a ~ b ~ c              CONCAT(a, b, c)
//! a + b    a * b         LIMIT(a + b)    TIMES(a, b)
//! [a, b]  {k: a}  (a, b) LIMIT([a, b])   LIMIT({k: a})   LIMIT((a, b))
//! for x in a if b        for x in EACH(a) if b
//! a.b[1:][0]             SLICE(a.b, 1, none, none)[0]   (the engine's own panics on empty ones)
//! generation             if true          (a Hugging Face tag that renders its body)
//! ```
//!
//! Nothing else changes, no line is added, so errors name the author's lines. Only the structure of
//! expressions is understood: brackets, strings, and which operators bind tighter than which.

use std::ops::Range;

/// The functions the rewritten source calls. A template that mentions the prefix is refused, so none can replace them.
pub const PREFIX: &str = "shoal_guard_";
/// Joins its arguments as text.
pub const CONCAT: &str = "shoal_guard_concat";
/// Gives its argument back if it is not too large.
pub const LIMIT: &str = "shoal_guard_limit";
/// Multiplies its two arguments.
pub const TIMES: &str = "shoal_guard_times";
/// Gives its argument back if looping over it is not too much.
pub const EACH: &str = "shoal_guard_each";
/// Gives `value[start:stop:step]` for its four arguments.
pub const SLICE: &str = "shoal_guard_slice";

/// A source the engine may compile.
#[derive(Debug)]
pub struct Guarded {
    /// The rewritten source.
    pub source: String,
    /// Bytes of plain text between the tags: what one turn of a loop can print at most without an expression.
    pub text_bytes: usize,
}

/// Why a source is refused, and on which line.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    /// Counted from 1.
    pub line: usize,
    /// A short sentence.
    pub why: &'static str,
}

/// Deeper brackets are refused; the engine's own parser stops at 150.
const MAX_DEPTH: usize = 60;
/// Longer tags are refused: the engine recurses over chains of operators, attributes and filters. The longest in
/// published templates have some 200.
const MAX_TOKENS: usize = 2000;
/// More branches are refused, in all of a template: the engine nests them.
const MAX_BRANCHES: usize = 500;
/// Sums and products longer than this are limited only every so often, to keep the nesting of calls small.
const LIMITED_EACH: usize = 40;

/// Rewrites `source`.
pub fn guard(source: &str) -> Result<Guarded, Refused> {
    let refuse = |at: usize, why| Refused { line: source[..at].matches('\n').count() + 1, why };
    if let Some(at) = source.find(PREFIX) {
        return Err(refuse(at, "a reserved name"));
    }
    let mut out = String::with_capacity(source.len() * 5 / 4);
    let (mut at, mut text_bytes, mut branches) = (0, 0, 0);
    while let Some(open) = source[at..].find('{').map(|offset| at + offset) {
        let kind = source.as_bytes().get(open + 1).copied();
        out.push_str(&source[at..open]);
        text_bytes += open - at;
        match kind {
            Some(b'#') => {
                let end = source[open..].find("#}").ok_or_else(|| refuse(open, "a comment is not closed"))?;
                at = open + end + 2;
                out.push_str(&source[open..at]);
            }
            Some(b'{' | b'%') => {
                // A sign right behind the opening belongs to the tag.
                let signed = matches!(source.as_bytes().get(open + 2), Some(b'-' | b'+'));
                let start = open + 2 + usize::from(signed);
                let tokens = tokens(source, start).map_err(|(at, why)| refuse(at, why))?;
                let end = tokens.last().map_or(start, |token| token.range.end);
                let close = closing(source, end).ok_or_else(|| refuse(open, "a tag is not closed"))?;
                let expressions = Expressions { source, tokens: &tokens };
                out.push_str(&source[open..start]);
                if kind == Some(b'{') {
                    expressions.list(0..tokens.len(), &mut out);
                } else {
                    branches += usize::from(expressions.word(0) == Some("elif"));
                    if branches > MAX_BRANCHES {
                        return Err(refuse(open, "too many branches"));
                    }
                    expressions.statement(&mut out);
                }
                out.push_str(&source[end..close]);
                at = close;
                if kind == Some(b'%') && expressions.word(0) == Some("raw") {
                    let rest = &source[at..];
                    let end = rest.find("endraw").ok_or_else(|| refuse(open, "raw is not closed"))?;
                    let end = rest[..end].rfind("{%").ok_or_else(|| refuse(open, "raw is not closed"))?;
                    out.push_str(&rest[..end]);
                    text_bytes += end;
                    at += end;
                }
            }
            _ => {
                out.push('{');
                text_bytes += 1;
                at = open + 1;
            }
        }
    }
    out.push_str(&source[at..]);
    text_bytes += source.len() - at;
    Ok(Guarded { source: out, text_bytes })
}

/// Where the tag ends whose tokens end at `at`: behind white space, an optional sign and two characters.
fn closing(source: &str, at: usize) -> Option<usize> {
    let rest = source[at..].trim_start();
    let signed = rest.strip_prefix(['-', '+']).unwrap_or(rest);
    let after = signed.strip_prefix("%}").or_else(|| signed.strip_prefix("}}"))?;
    Some(source.len() - after.len())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Word,
    /// A number or a string.
    Literal,
    Operator,
    Open,
    Close,
}

#[derive(Debug)]
struct Token {
    kind: Kind,
    range: Range<usize>,
    /// For an opening bracket, the index of its partner.
    partner: usize,
}

/// The tokens of the tag whose inside begins at `start`, up to its end.
fn tokens(source: &str, start: usize) -> Result<Vec<Token>, (usize, &'static str)> {
    let bytes = source.as_bytes();
    let mut tokens: Vec<Token> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let mut at = start;
    while at < bytes.len() {
        let begin = at;
        let ends = |offset: usize| {
            matches!(&bytes[(at + offset).min(bytes.len())..], [b'%', b'}', ..] | [b'}', b'}', ..])
        };
        let kind = match bytes[at] {
            byte if byte.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            _ if open.is_empty() && ends(0) => return Ok(tokens),
            b'-' | b'+' if open.is_empty() && ends(1) => return Ok(tokens),
            quote @ (b'"' | b'\'') => {
                at += 1;
                while at < bytes.len() && bytes[at] != quote {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
                Kind::Literal
            }
            byte if byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80 => {
                let word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_' || *b >= 0x80;
                at += bytes[at..].iter().take_while(|b| word(b)).count();
                Kind::Word
            }
            byte if byte.is_ascii_digit() => {
                let number = |b: &u8| b.is_ascii_alphanumeric() || matches!(*b, b'_' | b'.');
                at += bytes[at..].iter().take_while(|b| number(b)).count();
                Kind::Literal
            }
            b'(' | b'[' | b'{' => {
                if open.len() == MAX_DEPTH {
                    return Err((at, "brackets are nested too deep"));
                }
                open.push(tokens.len());
                at += 1;
                Kind::Open
            }
            b')' | b']' | b'}' => {
                let partner = open.pop().ok_or((at, "a bracket closes that was not opened"))?;
                tokens[partner].partner = tokens.len();
                at += 1;
                Kind::Close
            }
            _ => {
                let two = matches!(
                    &bytes[at..],
                    [b'*', b'*', ..] | [b'/', b'/', ..] | [b'=' | b'!' | b'<' | b'>', b'=', ..]
                );
                at += if two { 2 } else { 1 };
                Kind::Operator
            }
        };
        if at > bytes.len() {
            return Err((begin, "a string is not closed"));
        }
        if tokens.len() == MAX_TOKENS {
            return Err((begin, "a tag is too long"));
        }
        tokens.push(Token { kind, range: begin..at, partner: 0 });
    }
    Err((start, "a tag is not closed"))
}

struct Expressions<'s> {
    source: &'s str,
    tokens: &'s [Token],
}

/// Words that end an expression and begin another.
const BETWEEN: &[&str] =
    &["and", "or", "not", "in", "if", "else", "elif", "recursive", "as", "import", "from", "with"];

impl Expressions<'_> {
    fn text(&self, at: usize) -> &str {
        &self.source[self.tokens[at].range.clone()]
    }

    fn word(&self, at: usize) -> Option<&str> {
        let token = self.tokens.get(at)?;
        (token.kind == Kind::Word).then(|| &self.source[token.range.clone()])
    }

    /// The token behind `at` on the same level.
    fn after(&self, at: usize) -> usize {
        match self.tokens[at].kind {
            Kind::Open => self.tokens[at].partner + 1,
            _ => at + 1,
        }
    }

    /// The first token on this level that is `text`.
    fn find(&self, range: Range<usize>, text: &str) -> Option<usize> {
        let mut at = range.start;
        while at < range.end {
            if self.text(at) == text && self.tokens[at].kind != Kind::Literal {
                return Some(at);
            }
            at = self.after(at);
        }
        None
    }

    /// White space in front of a token, with its line ends.
    fn space(&self, at: usize, out: &mut String) {
        let end = self.tokens[at].range.start;
        let before = &self.source[..end];
        out.push_str(&before[before.trim_end().len()..]);
    }

    /// Copies tokens as they stand.
    fn copy(&self, range: Range<usize>, out: &mut String) {
        if range.is_empty() {
            return;
        }
        self.space(range.start, out);
        let end = self.tokens[range.end - 1].range.end;
        out.push_str(&self.source[self.tokens[range.start].range.start..end]);
    }

    /// The inside of `{% %}`.
    fn statement(&self, out: &mut String) {
        let all = 0..self.tokens.len();
        match self.word(0) {
            Some(name @ ("generation" | "endgeneration")) if all.len() == 1 => {
                self.space(0, out);
                out.push_str(if name == "generation" { "if true" } else { "endif" });
            }
            Some("for") => {
                let Some(begin) = self.find(all.clone(), "in").map(|at| at + 1) else {
                    return self.list(all, out);
                };
                let end = ["if", "recursive"]
                    .iter()
                    .filter_map(|word| self.find(begin..all.end, word))
                    .min()
                    .unwrap_or(all.end);
                self.copy(0..begin, out);
                out.push(' ');
                out.push_str(EACH);
                out.push('(');
                self.list(begin..end, out);
                out.push(')');
                self.list(end..all.end, out);
            }
            Some("set") => {
                let begin = self.find(all.clone(), "=").map_or(all.end, |at| at + 1);
                self.copy(0..begin, out);
                self.list(begin..all.end, out);
            }
            Some(_) => {
                self.copy(0..1, out);
                self.list(1..all.end, out);
            }
            None => self.list(all, out),
        }
    }

    /// Expressions with commas, colons, comparisons or words between them.
    fn list(&self, range: Range<usize>, out: &mut String) {
        let mut at = range.start;
        let mut begin = at;
        while at < range.end {
            let between = match self.tokens[at].kind {
                Kind::Word => BETWEEN.contains(&self.text(at)) && !self.in_test(begin, at),
                Kind::Operator => {
                    matches!(self.text(at), "," | ":" | "=" | "==" | "!=" | "<" | ">" | "<=" | ">=")
                }
                _ => false,
            };
            if between {
                self.sum(begin..at, out);
                self.copy(at..at + 1, out);
                begin = at + 1;
            }
            at = self.after(at);
        }
        self.sum(begin..range.end, out);
    }

    /// Whether the word at `at` belongs to a test: `is not`, `is in`, `is not in`.
    fn in_test(&self, begin: usize, at: usize) -> bool {
        let before = |back: usize| at.checked_sub(back).filter(|&at| at >= begin).map(|at| self.text(at));
        before(1) == Some("is") || (before(1) == Some("not") && before(2) == Some("is"))
    }

    /// Cuts `range` at the binary operators `wanted`; gives the operands, each with the operator in front of it.
    fn operands(&self, range: Range<usize>, wanted: &[&str]) -> Vec<(Option<usize>, Range<usize>)> {
        let mut parts = Vec::new();
        let (mut begin, mut operator) = (range.start, None);
        let mut at = range.start;
        while at < range.end {
            let binary = at > begin
                && self.tokens[at].kind == Kind::Operator
                && self.tokens[at - 1].kind != Kind::Operator
                && wanted.contains(&self.text(at));
            if binary {
                parts.push((operator, begin..at));
                operator = Some(at);
                begin = at + 1;
            }
            at = self.after(at);
        }
        parts.push((operator, begin..range.end));
        parts
    }

    fn sum(&self, range: Range<usize>, out: &mut String) {
        let parts = self.operands(range, &["+", "-"]);
        self.limited(&parts, out, |range, out| self.concatenation(range, out));
    }

    fn concatenation(&self, range: Range<usize>, out: &mut String) {
        let parts = self.operands(range, &["~"]);
        if parts.len() == 1 {
            return self.product(parts[0].1.clone(), out);
        }
        out.push(' ');
        out.push_str(CONCAT);
        out.push('(');
        for (operator, part) in parts {
            if let Some(at) = operator {
                self.space(at, out);
                out.push(',');
            }
            self.product(part, out);
        }
        out.push(')');
    }

    fn product(&self, range: Range<usize>, out: &mut String) {
        let parts = self.operands(range, &["*", "/", "//", "%"]);
        self.limited(&parts, out, |range, out| self.operand(range, out));
    }

    /// Writes `parts` with a limit behind the operators that grow what they are given.
    fn limited(
        &self,
        parts: &[(Option<usize>, Range<usize>)],
        out: &mut String,
        part: impl Fn(Range<usize>, &mut String),
    ) {
        let every = parts.len() / LIMITED_EACH + 1;
        let call = |index: usize| match parts[index].0.map(|at| self.text(at)) {
            Some("*") => Some(TIMES),
            Some("+" | "%") if index + 1 == parts.len() || index % every == 0 => Some(LIMIT),
            _ => None,
        };
        for name in (0..parts.len()).rev().filter_map(call) {
            out.push(' ');
            out.push_str(name);
            out.push('(');
        }
        for (index, (operator, range)) in parts.iter().enumerate() {
            match (*operator, call(index)) {
                (Some(at), Some(TIMES)) => {
                    self.space(at, out);
                    out.push(',');
                }
                (Some(at), _) => self.copy(at..at + 1, out),
                (None, _) => {}
            }
            part(range.clone(), out);
            if call(index).is_some() {
                out.push(')');
            }
        }
    }

    /// One operand with its filters, tests, subscripts and calls; brackets inside are rewritten in turn.
    fn operand(&self, range: Range<usize>, out: &mut String) {
        let mut at = range.start;
        // Where in `out` the value begins that a subscript would apply to.
        let mut value = None;
        while at < range.end {
            let token = &self.tokens[at];
            if token.kind != Kind::Open {
                let joins = self.text(at) == "." || matches!(self.text(at), "is" | "not");
                if token.kind == Kind::Operator && !joins {
                    value = None;
                } else if value.is_none() {
                    self.space(at, out);
                    value = Some(out.len());
                    out.push_str(self.text(at));
                    at += 1;
                    continue;
                }
                self.copy(at..at + 1, out);
                at += 1;
                continue;
            }
            let applied = at > range.start
                && match self.tokens[at - 1].kind {
                    Kind::Word => !BETWEEN.contains(&self.text(at - 1)) && self.text(at - 1) != "is",
                    Kind::Literal | Kind::Close => true,
                    _ => false,
                };
            let inside = at + 1..token.partner;
            if let Some(value) = value.filter(|_| applied && self.slices(at)) {
                out.insert_str(value, &format!("{SLICE}("));
                self.slice(inside, out);
            } else {
                let literal = !applied && (self.text(at) != "(" || self.find(inside.clone(), ",").is_some());
                self.space(at, out);
                value = value.or(Some(out.len()));
                if literal {
                    out.push_str(LIMIT);
                    out.push('(');
                }
                out.push_str(self.text(at));
                self.list(inside, out);
                self.copy(token.partner..token.partner + 1, out);
                if literal {
                    out.push(')');
                }
            }
            at = token.partner + 1;
        }
    }

    /// Whether the bracket at `at` holds a slice.
    fn slices(&self, at: usize) -> bool {
        self.text(at) == "[" && self.find(at + 1..self.tokens[at].partner, ":").is_some()
    }

    /// Writes the inside of a subscript as the last three arguments of [`SLICE`].
    fn slice(&self, range: Range<usize>, out: &mut String) {
        let mut begin = range.start;
        for _ in 0..3 {
            let end = self.find(begin.min(range.end)..range.end, ":").unwrap_or(range.end);
            out.push(',');
            if begin < end {
                self.list(begin..end, out);
            } else {
                out.push_str(" none");
            }
            begin = end + 1;
        }
        // More than two colons are no slice; the engine will say so.
        if begin <= range.end {
            self.copy(begin - 1..range.end, out);
        }
        out.push(')');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expected: &str) {
        let short = guard(source).unwrap().source.replace(PREFIX, "$");
        let squeeze = |text: &str| text.split_whitespace().collect::<String>();
        assert_eq!(squeeze(&short), squeeze(expected), "{source}");
    }

    #[test]
    fn what_can_grow_is_wrapped() {
        check("{{ a ~ b ~ 'c ~ d' }}", "{{ $concat( a , b , 'c ~ d') }}");
        check("{{- a + b - c -}}", "{{- $limit( a + b) - c -}}");
        check("{{ a * -b }}", "{{ $times( a , -b) }}");
        check("{{ a ~ b * c + d }}", "{{ $limit( $concat( a , $times( b , c)) + d) }}");
        check(
            "{% if a ~ b is string and not c + d > 3 %}",
            "{% if $concat( a , b is string) and not $limit( c + d) > 3 %}",
        );
        check("{% for k, v in x.items() if v %}", "{% for k, v in $each( x.items()) if v %}");
        check("{% set x = [a, {'k': b ~ c}] %}", "{% set x = $limit([a, $limit({'k': $concat( b , c)})]) %}");
        check(
            "{% set a.b = f(x ~ y, z=(1, 2))[0] %}",
            "{% set a.b = f( $concat(x , y), z= $limit((1, 2)))[0] %}",
        );
        check(
            "{{ x[1:] | map(attribute='a ~ b') | join(', ') }}",
            "{{ $slice(x, 1, none, none) | map(attribute='a ~ b') | join(', ') }}",
        );
        check(
            "{{ -x.y(1)[::-1][0] + z['a:b'][a:] }}",
            "{{ $limit( - $slice(x.y(1), none, none, -1)[0] + $slice(z['a:b'],a, none, none)) }}",
        );
        check("{{ (a or b)[:n - 1] }}", "{{ $slice((a or b), none,n - 1, none) }}");
        check("{%- generation -%}x{%- endgeneration %}", "{%- if true -%}x{%- endif %}");
        check(
            "{# a ~ b #}{ {% raw %}{{ a ~ b }}{% endraw %}",
            "{# a ~ b #}{ {% raw %}{{ a ~ b }}{% endraw %}",
        );
        check(
            "{{ a if b is not in [1] else c ~ d }}",
            "{{ a if b is not in $limit([1]) else $concat( c , d) }}",
        );
        check("{{ {'a': {}} }}", "{{ $limit({'a': $limit({})}) }}");
        check("{{ a * b // c * d % e }}", "{{ $limit( $times( $times(a , b) // c , d) % e) }}");
        check("{{ a - 1 }}{{ -1 }}{{ f(*a, **b) }}", "{{ a - 1 }}{{ -1 }}{{ f(*a, **b) }}");
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_its_line() {
        for (source, line) in [
            ("\n{{ a", 2),
            ("{{ 'a }}", 1),
            ("\n\n{% if ) %}", 3),
            ("{# x", 1),
            ("{% raw %}", 1),
            ("a\n{{ shoal_guard_limit(1) }}", 2),
        ] {
            assert_eq!(guard(source).unwrap_err().line, line, "{source:?}");
        }
        assert!(guard(&format!("{{{{ {}1{} }}}}", "(".repeat(99), ")".repeat(99))).is_err());
    }

    #[test]
    fn lines_stay_where_they_are() {
        let source = "{{ a\n ~\n b\n + c }}\n{% for x\n in [1,\n 2] %}\n{% endfor %}";
        assert_eq!(guard(source).unwrap().source.matches('\n').count(), source.matches('\n').count());
    }
}
