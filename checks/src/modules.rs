//! The modules of a crate and what each says, from its sources. Code of tests is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

use crate::{Error, Result, read};

/// A path in a source: its segments.
pub(crate) type Segments = Vec<String>;

/// A name that a `use` brings into a module.
#[derive(Clone, Debug)]
pub(crate) struct Binding {
    /// The name; `None` if it is all that a module has.
    pub(crate) name: Option<String>,
    /// What it stands for.
    pub(crate) path: Segments,
    /// Whether others may take it from here.
    pub(crate) reexport: bool,
}

/// A module.
#[derive(Clone, Debug)]
pub struct Module {
    /// The file that it is in.
    pub(crate) file: PathBuf,
    pub(crate) parent: Option<usize>,
    pub(crate) children: BTreeMap<String, usize>,
    pub(crate) bindings: Vec<Binding>,
    /// What it defines.
    pub(crate) items: BTreeSet<String>,
    /// The paths in its code, beside those of `use`.
    pub(crate) paths: BTreeSet<Segments>,
    /// Every name in its macros' arguments.
    pub(crate) in_macros: BTreeSet<String>,
}

/// The modules of a crate, the root first.
#[derive(Clone, Debug, Default)]
pub struct Modules {
    pub(crate) all: Vec<Module>,
}

impl Modules {
    /// The modules of the crate whose root is this file.
    ///
    /// # Errors
    /// If a source cannot be read or is no Rust.
    pub fn of(root: &Path) -> Result<Self> {
        let mut modules = Self::default();
        let directory = root.parent().unwrap_or(root).to_owned();
        modules.add_file(root, None, &directory)?;
        Ok(modules)
    }

    fn add_file(&mut self, file: &Path, parent: Option<usize>, directory: &Path) -> Result<usize> {
        let parsed = syn::parse_file(&read(file)?).map_err(|error| Error::new(file, error))?;
        self.add(file, parent, directory, &parsed.items)
    }

    /// Adds a module. `directory` is where its children's files are.
    fn add(
        &mut self,
        file: &Path,
        parent: Option<usize>,
        directory: &Path,
        items: &[Item],
    ) -> Result<usize> {
        let index = self.all.len();
        self.all.push(Module {
            file: file.to_owned(),
            parent,
            children: BTreeMap::new(),
            bindings: Vec::new(),
            items: BTreeSet::new(),
            paths: BTreeSet::new(),
            in_macros: BTreeSet::new(),
        });
        for item in items.iter().filter(|item| !is_test(attributes(item))) {
            match item {
                Item::Mod(module) => {
                    let name = module.ident.to_string();
                    let below = directory.join(&name);
                    let child = match &module.content {
                        Some((_, items)) => self.add(file, Some(index), &below, items)?,
                        None => self.add_file(&file_of(directory, &name), Some(index), &below)?,
                    };
                    self.all[index].children.insert(name, child);
                }
                other => self.all[index].take(other),
            }
        }
        Ok(index)
    }
}

/// The file of a module that is declared where `directory` holds the children's.
fn file_of(directory: &Path, name: &str) -> PathBuf {
    let file = directory.join(name).join("mod.rs");
    if file.is_file() {
        return file;
    }
    directory.join(name).with_extension("rs")
}

impl Module {
    /// Takes an item that is no module.
    fn take(&mut self, item: &Item) {
        if let Some(name) = name_of(item) {
            self.items.insert(name);
        }
        self.visit_item(item);
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let reexport = !matches!(item.vis, Visibility::Inherited);
        flatten(&item.tree, &mut Vec::new(), &mut |name, path| {
            self.bindings.push(Binding {
                name,
                path,
                reexport,
            });
        });
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments = path.segments.iter().map(|s| s.ident.to_string());
        self.paths.insert(segments.collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        names_in(&called.tokens, &mut self.in_macros);
        visit::visit_macro(self, called);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }
}

/// Every name that a `use` brings, and the path that it stands for.
fn flatten(
    tree: &UseTree,
    before: &mut Segments,
    found: &mut impl FnMut(Option<String>, Segments),
) {
    let whole = |last: &syn::Ident, before: &Segments| {
        let mut path = before.clone();
        if last != "self" {
            path.push(last.to_string());
        }
        path
    };
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, found);
            before.pop();
        }
        UseTree::Name(name) => {
            let path = whole(&name.ident, before);
            found(path.last().cloned(), path);
        }
        UseTree::Rename(renamed) => {
            let path = whole(&renamed.ident, before);
            found(Some(renamed.rename.to_string()), path);
        }
        UseTree::Glob(_) => found(None, before.clone()),
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, before, found);
            }
        }
    }
}

fn names_in(tokens: &proc_macro2::TokenStream, names: &mut BTreeSet<String>) {
    for token in tokens.clone() {
        match token {
            proc_macro2::TokenTree::Ident(name) => {
                names.insert(name.to_string());
            }
            proc_macro2::TokenTree::Group(group) => names_in(&group.stream(), names),
            _ => {}
        }
    }
}

/// Whether something is compiled for tests only.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg")
                && attribute
                    .meta
                    .require_list()
                    .is_ok_and(|list| words(&list.tokens.to_string()).any(|w| w == "test")))
    })
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(i) => &i.attrs,
        Item::Enum(i) => &i.attrs,
        Item::Fn(i) => &i.attrs,
        Item::Impl(i) => &i.attrs,
        Item::Macro(i) => &i.attrs,
        Item::Mod(i) => &i.attrs,
        Item::Static(i) => &i.attrs,
        Item::Struct(i) => &i.attrs,
        Item::Trait(i) => &i.attrs,
        Item::Type(i) => &i.attrs,
        Item::Use(i) => &i.attrs,
        _ => &[],
    }
}

fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(i) => &i.ident,
        Item::Enum(i) => &i.ident,
        Item::Fn(i) => &i.sig.ident,
        Item::Macro(i) => i.ident.as_ref()?,
        Item::Static(i) => &i.ident,
        Item::Struct(i) => &i.ident,
        Item::Trait(i) => &i.ident,
        Item::Type(i) => &i.ident,
        Item::Union(i) => &i.ident,
        _ => return None,
    };
    Some(name.to_string())
}
