//! Parsing of declarations, and checks that all names in them can be bound.

use crate::{
    error::{At, Error, Result},
    external,
    import::custom::declaration::{
        AttributeKind, AttributePattern, AxisPattern, Custom, ElementPattern, OperandPattern, TensorPattern,
    },
    text::Cursor,
};
use std::collections::BTreeSet;
use symshape::{Dim, Symbol};
use symshape_runtime::{DType, external::AttributeValue};

/// Maximum length of a declaration.
const MAX_BYTES: usize = 1 << 14;

impl Custom {
    /// Parses a declaration.
    ///
    /// ```
    /// use symshape_compiler::import::Custom;
    /// let swish = Custom::parse("com.acme:Swish(x: f32[A, B]) -> f32[A, B] = acme_swish")?;
    /// assert_eq!((swish.name().as_str(), swish.symbol()), ("com.acme:Swish", "acme_swish"));
    /// let error = Custom::parse("Swish(x: f32[A]) -> f32[B] = swish").unwrap_err();
    /// assert!(error.to_string().contains("unknown name B in `B`"), "{error}");
    /// # Ok::<(), symshape_compiler::Error>(())
    /// ```
    ///
    /// # Errors
    /// A description of the error and its position.
    pub fn parse(text: &str) -> Result<Custom> {
        declaration(text)
    }

    /// Parses a file of declarations, one per line. `#` starts a comment.
    ///
    /// # Errors
    /// As [`Custom::parse`], with the line.
    pub fn parse_all(text: &str) -> Result<Vec<Custom>> {
        let mut list = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            if !line.trim().is_empty() {
                list.push(Custom::parse(line).at(|| format!("declaration on line {}", number + 1))?);
            }
        }
        Ok(list)
    }
}

fn declaration(text: &str) -> Result<Custom> {
    if text.len() > MAX_BYTES || text.contains('\0') {
        return Err(Error::invalid(format!(
            "a declaration must have at most {MAX_BYTES} bytes and no zero byte"
        )));
    }

    let mut parser = Parser { cursor: Cursor::new(text) };
    let (domain, operator) = parser.head()?;

    let mut operands = Vec::new();
    let mut attributes = Vec::new();
    while !parser.cursor.eat(")") {
        if !operands.is_empty() || !attributes.is_empty() {
            parser.cursor.expect(",")?;
        }
        parser.param(&mut operands, &mut attributes)?;
    }

    parser.cursor.expect("->")?;
    let results = parser.results()?;
    parser.cursor.expect("=")?;

    let symbol = parser.word("the name of a C function")?;
    external::check_symbol(&symbol)?;
    let scratch = if parser.cursor.eat_word("scratch") { parser.cursor.dim(&[])? } else { Dim::zero() };
    parser.cursor.end_line()?;
    let custom = Custom { domain, operator, operands, attributes, results, symbol, scratch, function: None };
    check(&custom)?;

    Ok(custom)
}

struct Parser<'a> {
    cursor: Cursor<'a>,
}

impl Parser<'_> {
    /// `domain:operator(`
    fn head(&mut self) -> Result<(String, String)> {
        let head = self.cursor.until(&["("]);
        let (domain, operator) = head.rsplit_once(':').unwrap_or(("", head));
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let is_name = |text: &str| text.chars().all(plain);
        if !is_name(domain) || !is_name(operator) || operator.is_empty() {
            return Err(self.cursor.error("expected DOMAIN:OPERATOR( or OPERATOR("));
        }
        let domain = if domain == "ai.onnx" { "" } else { domain };
        self.cursor.expect("(")?;
        Ok((domain.to_string(), operator.to_string()))
    }

    fn word(&mut self, expected: &str) -> Result<String> {
        self.cursor.parsed(expected, |word| {
            let is_name = word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
            is_name.then(|| word.to_string())
        })
    }

    fn param(
        &mut self,
        operands: &mut Vec<OperandPattern>,
        attributes: &mut Vec<AttributePattern>,
    ) -> Result<()> {
        let name = self.word("a parameter's name, or `)`")?;
        let operand_names = operands.iter().map(|operand| &operand.name);
        let taken = operand_names.chain(attributes.iter().map(|attribute| &attribute.name));
        if taken.into_iter().any(|other| *other == name) {
            return Err(self.cursor.error(format!("two parameters are called `{name}`")));
        }

        self.cursor.expect(":")?;
        let kind = match self.cursor.peek_word() {
            "int" => AttributeKind::Int,
            "float" => AttributeKind::Float,
            "string" => AttributeKind::String,
            "ints" => AttributeKind::Ints,
            "floats" => AttributeKind::Floats,
            _ => {
                operands.push(OperandPattern { name, pattern: self.tensor_pattern()? });
                return Ok(());
            }
        };

        self.cursor.word();
        let default = if self.cursor.eat("=") { Some(self.default(kind)?) } else { None };
        attributes.push(AttributePattern { name, kind, default });

        Ok(())
    }

    fn default(&mut self, kind: AttributeKind) -> Result<AttributeValue> {
        Ok(match kind {
            AttributeKind::Int => AttributeValue::Ints(vec![self.number()?]),
            AttributeKind::Float => AttributeValue::Floats(vec![self.number()?]),
            AttributeKind::String => AttributeValue::Bytes(self.cursor.string()?.into_bytes()),
            AttributeKind::Ints => AttributeValue::Ints(self.literals()?),
            AttributeKind::Floats => AttributeValue::Floats(self.literals()?),
        })
    }

    fn number<T: std::str::FromStr>(&mut self) -> Result<T> {
        let text = self.cursor.until(&[",", ")", "]", " "]);
        text.parse().map_err(|_| self.cursor.error(format!("`{text}` is not a default of this type")))
    }

    fn literals<T: std::str::FromStr>(&mut self) -> Result<Vec<T>> {
        self.cursor.expect("[")?;
        let mut list = Vec::new();
        while !self.cursor.eat("]") {
            if !list.is_empty() {
                self.cursor.expect(",")?;
            }
            list.push(self.number()?);
        }
        Ok(list)
    }

    fn results(&mut self) -> Result<Vec<TensorPattern>> {
        if !self.cursor.eat("(") {
            return Ok(vec![self.tensor_pattern()?]);
        }
        let mut results = vec![self.tensor_pattern()?];
        while !self.cursor.eat(")") {
            self.cursor.expect(",")?;
            results.push(self.tensor_pattern()?);
        }
        Ok(results)
    }

    fn tensor_pattern(&mut self) -> Result<TensorPattern> {
        let expected = "an element type such as f32, or a name that begins with a capital letter";
        let element = self.cursor.parsed(expected, |word| match DType::from_name(word) {
            Some(dtype) => Some(ElementPattern::Fixed(dtype)),
            None => word
                .starts_with(|c: char| c.is_ascii_uppercase())
                .then(|| ElementPattern::Any(word.to_string())),
        })?;

        self.cursor.expect("[")?;
        let mut axes = Vec::new();
        while !self.cursor.eat("]") {
            if !axes.is_empty() {
                self.cursor.expect(",")?;
            }
            axes.push(self.axis()?);
        }

        if axes.iter().filter(|axis| matches!(axis, AxisPattern::Rest(_))).count() > 1 {
            return Err(self.cursor.error("a shape may have one `...` only"));
        }

        Ok(TensorPattern { element, axes })
    }

    fn axis(&mut self) -> Result<AxisPattern> {
        let mut lookahead = self.cursor.clone();
        let name = lookahead.word().to_string();
        if lookahead.eat("...") {
            if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
                return Err(self.cursor.error("expected a name before `...`"));
            }
            self.cursor = lookahead;
            return Ok(AxisPattern::Rest(name));
        }
        Ok(AxisPattern::One(self.cursor.dim(&[",", "]"])?))
    }
}

/// Checks that an operand or attribute binds every name in the results and in expressions.
fn check(custom: &Custom) -> Result<()> {
    let axes = || custom.operands.iter().flat_map(|operand| &operand.pattern.axes);
    let ints = custom.attributes.iter().filter(|attribute| attribute.kind == AttributeKind::Int);

    let mut known: BTreeSet<Symbol> = ints.map(|one| Symbol::new(&one.name)).collect();
    let mut rests: BTreeSet<&str> = BTreeSet::new();
    for axis in axes() {
        match axis {
            AxisPattern::One(dim) => known.extend(dim.as_symbol().cloned()),
            AxisPattern::Rest(name) => _ = rests.insert(name),
        }
    }

    if let Some(name) = rests.iter().find(|name| known.contains(&Symbol::new(name))) {
        return Err(Error::invalid(format!("{name} is used both for one axis and for any number of axes")));
    }

    let results = || custom.results.iter().flat_map(|pattern| &pattern.axes);
    let scratch = [AxisPattern::One(custom.scratch.clone())];
    for axis in axes().chain(results()).chain(&scratch) {
        match axis {
            AxisPattern::One(dim) => {
                if let Some(unknown) = dim.symbols().into_iter().find(|symbol| !known.contains(symbol)) {
                    return Err(Error::invalid(format!(
                        "unknown name {unknown} in `{dim}`: it must be an axis of an operand or an int attribute"
                    )));
                }
                if dim.as_i64().is_some_and(|size| size < 0) {
                    return Err(Error::invalid(format!("the size {dim} must not be negative")));
                }
            }
            AxisPattern::Rest(name) if !rests.contains(name.as_str()) => {
                return Err(Error::invalid(format!("{name}... is not in an operand")));
            }
            AxisPattern::Rest(_) => {}
        }
    }

    let elements: BTreeSet<&str> =
        custom.operands.iter().filter_map(|operand| variable(&operand.pattern.element)).collect();

    let unknown = custom.results.iter().filter_map(|pattern| variable(&pattern.element));
    match unknown.into_iter().find(|name| !elements.contains(name)) {
        None => Ok(()),
        Some(name) => Err(Error::invalid(format!("{name} is not the element type of an operand"))),
    }
}

fn variable(element: &ElementPattern) -> Option<&str> {
    match element {
        ElementPattern::Any(name) => Some(name),
        ElementPattern::Fixed(_) => None,
    }
}
