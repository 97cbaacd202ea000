//! How long functions are, counted as clippy's `too_many_lines` counts.

use syn::Attribute;
use syn::visit::{self, Visit};

/// So many lines of code a function has at most, unless it says why it has more.
pub const MOST_LINES: usize = 60;

/// A function of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name, after that of the type that it is a method of.
    pub name: String,
    /// The lines of code in its body.
    pub lines: usize,
    /// Whether it says why it is longer than [`MOST_LINES`].
    pub excused: bool,
}

/// The functions of a source, those within others included.
///
/// # Errors
/// If it is no Rust.
pub fn functions(source: &str) -> syn::Result<Vec<Function>> {
    let parsed = syn::parse_file(source)?;
    let mut visitor = Functions {
        source: source.lines().collect(),
        within: String::new(),
        found: Vec::new(),
    };
    visitor.visit_file(&parsed);
    Ok(visitor.found)
}

/// The lines of a function's body, without its braces, that have more than a comment.
#[must_use]
pub fn lines_of_code(body: &str) -> usize {
    let mut in_comment = false;
    body.lines()
        .filter(|line| has_code(line, &mut in_comment))
        .count()
}

fn has_code(line: &str, in_comment: &mut bool) -> bool {
    let mut rest = line.trim_start();
    let mut code = false;
    while !rest.is_empty() {
        if *in_comment {
            let Some((_, after)) = rest.split_once("*/") else {
                break;
            };
            (rest, *in_comment) = (after.trim_start(), false);
            continue;
        }
        let single = rest.find("//").unwrap_or(rest.len());
        let multi = rest.find("/*").unwrap_or(rest.len());
        code |= single > 0 && multi > 0;
        if multi >= single {
            break;
        }
        (rest, *in_comment) = (rest[multi + 2..].trim_start(), true);
    }
    code
}

struct Functions<'a> {
    source: Vec<&'a str>,
    within: String,
    found: Vec<Function>,
}

impl Functions<'_> {
    fn add(&mut self, name: &syn::Ident, attributes: &[Attribute], block: &syn::Block) {
        let (start, end) = (
            block.brace_token.span.open().end(),
            block.brace_token.span.close().start(),
        );
        let body: Vec<&str> = (start.line..=end.line)
            .map(|line| self.source.get(line - 1).copied().unwrap_or_default())
            .collect();
        let mut body = body.join("\n");
        // Columns are characters of the first and the last line.
        let cut = |text: &str, characters: usize| {
            text.chars()
                .take(characters)
                .map(char::len_utf8)
                .sum::<usize>()
        };
        let last = body.rfind('\n').map_or(0, |at| at + 1);
        body.truncate(last + cut(&body[last..], end.column));
        let first = cut(&body, start.column);
        let name = match self.within.as_str() {
            "" => name.to_string(),
            within => format!("{within}::{name}"),
        };
        self.found.push(Function {
            name,
            lines: lines_of_code(&body[first..]),
            excused: attributes.iter().any(is_excuse),
        });
    }

    fn inside(&mut self, name: String, visit: impl FnOnce(&mut Self)) {
        let before = std::mem::replace(&mut self.within, name);
        visit(self);
        self.within = before;
    }
}

/// Whether it is `#[expect(clippy::too_many_lines, reason = …)]`.
fn is_excuse(attribute: &Attribute) -> bool {
    attribute.path().is_ident("expect")
        && attribute.meta.require_list().is_ok_and(|list| {
            let text = list.tokens.to_string();
            text.contains("too_many_lines") && text.contains("reason")
        })
}

fn name_of(of: &syn::Type) -> String {
    match of {
        syn::Type::Path(path) => {
            let last = path.path.segments.last();
            last.map_or_else(String::new, |segment| segment.ident.to_string())
        }
        syn::Type::Reference(reference) => name_of(&reference.elem),
        _ => String::new(),
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.add(&function.sig.ident, &function.attrs, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.add(&function.sig.ident, &function.attrs, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.add(&function.sig.ident, &function.attrs, block);
        }
        visit::visit_trait_item_fn(self, function);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.inside(name_of(&item.self_ty), |v| visit::visit_item_impl(v, item));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.inside(item.ident.to_string(), |v| visit::visit_item_trait(v, item));
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.inside(item.ident.to_string(), |v| visit::visit_item_mod(v, item));
    }
}
