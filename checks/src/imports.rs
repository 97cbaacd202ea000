//! Which file names what of which other file of its crate.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::modules::{Binding, Module, Modules};

/// So many names are followed from one to the next before that is called a circle.
const DEEPEST: usize = 32;

/// What each file names of each other: by the file and the other one, the names.
///
/// A name that a module only hands on (`pub use`) counts for the file that defines it. Declaring a module counts for
/// nothing. What is named inside the arguments of macros only is not seen.
#[must_use]
pub fn imports(modules: &Modules) -> BTreeMap<(PathBuf, PathBuf), BTreeSet<String>> {
    let mut found: BTreeMap<(PathBuf, PathBuf), BTreeSet<String>> = BTreeMap::new();
    for (index, module) in modules.all.iter().enumerate() {
        let bound = module.bindings.iter().filter(|b| is_used(module, b));
        let paths = bound.map(|binding| &binding.path);
        let paths = paths.chain(
            module
                .paths
                .iter()
                .filter(|path| names_module(module, path)),
        );
        for path in paths {
            let Some(target) = modules.resolve(index, path, 0) else {
                continue;
            };
            let target = &modules.all[target].file;
            if *target != module.file {
                let names = found.entry((module.file.clone(), target.clone()));
                names.or_default().insert(path.join("::"));
            }
        }
    }
    found
}

/// Whether a path in code names a module that it begins with: what begins with an imported name, the import counts.
fn names_module(module: &Module, path: &[String]) -> bool {
    let [first, _, ..] = path else {
        return false;
    };
    ["crate", "self", "super"].contains(&first.as_str()) || module.children.contains_key(first)
}

/// Whether the module itself uses what it brings in: it does if others cannot take it from there.
fn is_used(module: &Module, binding: &Binding) -> bool {
    !binding.reexport
        || binding.name.as_ref().is_some_and(|name| {
            let in_code = |path: &Vec<String>| path.first() == Some(name);
            module.in_macros.contains(name) || module.paths.iter().any(in_code)
        })
}

impl Modules {
    /// The module that defines what a path in the module `from` stands for; `None` if it is of another crate.
    fn resolve(&self, from: usize, path: &[String], depth: usize) -> Option<usize> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(self.definer(0, rest, depth)),
            "self" => Some(self.definer(from, rest, depth)),
            "super" => {
                let mut at = self.all[from].parent?;
                let mut rest = rest;
                while let [again, after @ ..] = rest
                    && again == "super"
                {
                    at = self.all[at].parent?;
                    rest = after;
                }
                Some(self.definer(at, rest, depth))
            }
            _ => self.look_up(from, path, depth),
        }
    }

    /// The module that defines what `path` means in the module `at`: that itself if it says nothing of the name.
    fn definer(&self, at: usize, path: &[String], depth: usize) -> usize {
        if path.is_empty() {
            return at;
        }
        self.look_up(at, path, depth).unwrap_or(at)
    }

    fn look_up(&self, at: usize, path: &[String], depth: usize) -> Option<usize> {
        let (name, rest) = path.split_first()?;
        let module = &self.all[at];
        if let Some(child) = module.children.get(name) {
            return Some(self.definer(*child, rest, depth));
        }
        if module.items.contains(name) {
            return Some(at);
        }
        if depth >= DEEPEST {
            return None;
        }
        let named = |b: &&Binding| b.name.as_ref() == Some(name) && b.path.first() != Some(name);
        if let Some(binding) = module.bindings.iter().find(named) {
            let whole = [&binding.path, rest].concat();
            return self.resolve(at, &whole, depth + 1);
        }
        let globs = module.bindings.iter().filter(|b| b.name.is_none());
        globs
            .filter_map(|glob| self.resolve(at, &glob.path, depth + 1))
            .filter(|target| *target != at)
            .find_map(|target| self.look_up(target, path, depth + 1))
    }
}
