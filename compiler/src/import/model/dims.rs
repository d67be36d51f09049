//! Dims as exporters and people write them: names, and expressions with exact fractions.
//!
//! sympy prints `floor(height/2 - 1/2) + 1` for `(height - 1)//2 + 1`. So a term is a fraction until `floor`,
//! `ceiling` or `//` makes it an integer:
//!
//! ```text
//! sum    = term (('+' | '-') term)*
//! term   = factor (('*' | '/' | '//' | '%') factor)*
//! factor = '-' factor | integer | name | '(' sum ')' | function '(' sum (',' sum)* ')'
//! ```

use symshape::Dim;

/// Maximum nesting of an expression.
const MAX_DEPTH: usize = 64;

/// The expression in `text`. If it is not an expression, the whole text is the name of a symbol.
pub(crate) fn parse(text: &str) -> Dim {
    let whole = || Dim::symbol(text);
    if is_name(text) { whole() } else { expression(text).unwrap_or_else(whole) }
}

/// The expression in `text`, if it is one.
pub(crate) fn expression(text: &str) -> Option<Dim> {
    let mut parser = Parser { rest: text.trim(), depth: 0 };
    let value = parser.sum()?;
    (parser.rest.is_empty()).then(|| value.whole())?
}

/// Whether the text is a name. Names may have dashes, as in `batch-size`; a difference of symbols has spaces around its
/// sign.
fn is_name(text: &str) -> bool {
    let mut parts = text.split('-');
    parts.all(|part| {
        part.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && part.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | ':'))
    })
}

/// `num / den`.
struct Fraction {
    num: Dim,
    den: i64,
}

impl Fraction {
    fn whole(self) -> Option<Dim> {
        (self.den == 1).then_some(self.num)
    }

    fn floor(self) -> Fraction {
        match self.den {
            1 => self,
            den => self.num.floor_div(den).into(),
        }
    }

    fn add(self, other: Fraction, sign: i64) -> Option<Fraction> {
        let num = self.num * other.den + other.num * self.den.checked_mul(sign)?;
        Some(Fraction { num, den: self.den.checked_mul(other.den)? })
    }

    fn mul(self, other: Fraction) -> Option<Fraction> {
        let den = self.den.checked_mul(other.den)?;
        let num = self.num * other.num;
        match num.as_i64() {
            Some(value) if den != 1 && value % den == 0 => Some(Dim::from(value / den).into()),
            _ => Some(Fraction { num, den }),
        }
    }

    fn over(self, other: Fraction) -> Option<Fraction> {
        let divisor = other.num.as_i64().filter(|value| *value > 0)?;
        Some(Fraction { num: self.num * other.den, den: self.den.checked_mul(divisor)? })
    }

    fn floor_over(self, other: Fraction) -> Option<Fraction> {
        let divisor = other.num * self.den;
        if divisor.as_i64() == Some(0) {
            return None;
        }
        Some((self.num * other.den).floor_div(divisor).into())
    }
}

impl From<Dim> for Fraction {
    fn from(num: Dim) -> Fraction {
        Fraction { num, den: 1 }
    }
}

struct Parser<'a> {
    rest: &'a str,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn eat(&mut self, token: &str) -> bool {
        let found = self.rest.strip_prefix(token);
        if let Some(rest) = found {
            self.rest = rest.trim_start();
        }
        found.is_some()
    }

    fn word(&mut self, is_part: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        word
    }

    fn sum(&mut self) -> Option<Fraction> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }

        let mut sum = self.term()?;
        loop {
            let sign = if self.eat("+") {
                1
            } else if self.eat("-") {
                -1
            } else {
                break;
            };
            sum = sum.add(self.term()?, sign)?;
        }

        self.depth -= 1;
        Some(sum)
    }

    fn term(&mut self) -> Option<Fraction> {
        let mut product = self.factor()?;
        loop {
            if self.eat("//") {
                product = product.floor_over(self.factor()?)?;
            } else if self.eat("/") {
                product = product.over(self.factor()?)?;
            } else if self.eat("*") {
                product = product.mul(self.factor()?)?;
            } else if self.eat("%") {
                let divisor = self.factor()?.whole()?;
                if divisor.as_i64() == Some(0) {
                    return None;
                }
                product = product.whole()?.modulo(divisor).into();
            } else {
                return Some(product);
            }
        }
    }

    fn factor(&mut self) -> Option<Fraction> {
        let mut negative = false;
        while self.eat("-") {
            negative = !negative;
        }
        let value = self.atom()?;
        Some(if negative { Fraction { num: -value.num, den: value.den } } else { value })
    }

    fn atom(&mut self) -> Option<Fraction> {
        if self.eat("(") {
            let inner = self.sum()?;
            return self.eat(")").then_some(inner);
        }
        if self.rest.starts_with(|c: char| c.is_ascii_digit()) {
            let digits = self.word(|c| c.is_ascii_digit());
            return Some(Dim::from(digits.parse::<i64>().ok()?).into());
        }

        let name = self.word(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | ':'));
        if name.is_empty() {
            return None;
        }

        if self.eat("(") { self.call(name) } else { Some(Dim::symbol(name).into()) }
    }

    fn call(&mut self, name: &str) -> Option<Fraction> {
        let mut arguments = vec![self.sum()?];
        while self.eat(",") {
            arguments.push(self.sum()?);
        }

        if !self.eat(")") {
            return None;
        }

        let mut arguments = arguments.into_iter();
        let first = arguments.next()?;

        match name {
            "floor" | "Floor" | "ceiling" | "ceil" | "Ceil" if arguments.len() > 0 => None,
            "floor" | "Floor" => Some(first.floor()),
            "ceiling" | "ceil" | "Ceil" => Some(first.num.ceil_div(first.den).into()),
            "min" | "Min" | "max" | "Max" => {
                let pick =
                    if name.starts_with(['m', 'M']) && name.ends_with('n') { Dim::min } else { Dim::max };
                let folded =
                    arguments.try_fold(first.whole()?, |acc, other| Some(pick(&acc, other.whole()?)));
                folded.map(Fraction::from)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(parse(text).to_string(), expected.parse::<symshape::Dim>().unwrap().to_string());
    }

    #[test]
    fn dims_as_exporters_write_them() {
        check("N", "N");
        check("2*S", "2*S");
        check("past + seq", "past + seq");
        check("(H-1)//2+1", "(H - 1)//2 + 1");
        check("floor(height/2 - 1/2) + 1", "(2*height - 2)//4 + 1");
        check("Max(1, N)", "max(1, N)");
        check("p2o.DynamicDimension.2", "p2o.DynamicDimension.2");
        check("batch-size", "`batch-size`");
        check("a dim / of mine", "`a dim / of mine`");
        check("1/0", "`1/0`");
    }
}
