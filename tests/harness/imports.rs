//! Which modules of a crate import which, read from its source: the picture that `integration/structure.rs` holds.
//!
//! Every file below `src` is a module. An arrow `a -> b` says that code of `a` names something inside `b`, in a `use` or in a
//! path that begins with `crate`, `super` or `self`. A name that a module only hands on counts as that of the module it
//! comes from. Test modules are left out, as are files that only tests include.
//!
//! Limits: macros that make paths, `use` of everything (`*`) and names of other crates are not read.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// A module by its path inside the crate; the root is empty.
pub type Module = Vec<String>;

/// The modules of a crate and what each names.
pub struct Imports {
    arrows: BTreeMap<Module, BTreeSet<Module>>,
}

impl Imports {
    /// Reads all files below `src`.
    ///
    /// # Panics
    /// When a folder or file cannot be read.
    pub fn read(src: &Path) -> Self {
        let mut files = BTreeMap::new();
        collect(src, &mut Vec::new(), &mut files);
        Self::of_sources(&files)
    }

    fn of_sources(files: &BTreeMap<Module, String>) -> Self {
        let sources = Sources::new(files);
        Self { arrows: files.keys().map(|module| (module.clone(), sources.named(module))).collect() }
    }

    /// How many modules there are.
    pub fn len(&self) -> usize {
        self.arrows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.arrows.is_empty()
    }

    /// Groups of modules that import each other in a loop, parent and child apart: an arrow between a module and one that
    /// contains it is no arrow here.
    pub fn circles(&self) -> Vec<Vec<String>> {
        let apart = self.pairs().filter(|(from, to)| !from.starts_with(to) && !to.starts_with(from));
        let arrows = apart.map(|(from, to)| (from.join("::"), to.join("::")));
        circles(&arrows.collect())
    }

    /// The same for the rooms of `folder`, of the crate where it is empty: what stands directly in it, each with all below.
    /// Arrows between two rooms of `allowed` do not count.
    pub fn room_circles(&self, folder: &str, allowed: &[(&str, &str)]) -> Vec<Vec<String>> {
        let folder: Module = folder.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let room = |module: &Module| module.strip_prefix(&*folder)?.first().cloned();
        let arrows = self.pairs().filter_map(|(from, to)| Some((room(from)?, room(to)?)));
        let counts =
            |(from, to): &(String, String)| from != to && !allowed.contains(&(from.as_str(), to.as_str()));
        circles(&arrows.filter(counts).collect())
    }

    fn pairs(&self) -> impl Iterator<Item = (&Module, &Module)> {
        self.arrows.iter().flat_map(|(from, targets)| targets.iter().map(move |to| (from, to)))
    }

    /// The modules that `module` names.
    pub fn of(&self, module: &str) -> Vec<String> {
        let module: Module = module.split("::").map(str::to_owned).collect();
        self.arrows.get(&module).into_iter().flatten().map(|to| to.join("::")).collect()
    }
}

/// Groups of names that reach each other by `arrows`.
fn circles(arrows: &BTreeSet<(String, String)>) -> Vec<Vec<String>> {
    let names: BTreeSet<&String> = arrows.iter().flat_map(|(from, to)| [from, to]).collect();
    let names: Vec<&String> = names.into_iter().collect();
    let index: BTreeMap<&String, usize> = names.iter().enumerate().map(|(i, name)| (*name, i)).collect();
    let mut reach = vec![vec![false; names.len()]; names.len()];
    for (from, to) in arrows {
        reach[index[from]][index[to]] = true;
    }
    for via in 0..names.len() {
        let onward = reach[via].clone();
        for row in reach.iter_mut().filter(|row| row[via]) {
            row.iter_mut().zip(&onward).for_each(|(to, far)| *to |= far);
        }
    }
    let mut seen = BTreeSet::new();
    let mut circles = Vec::new();
    for (from, row) in reach.iter().enumerate() {
        let circle: Vec<usize> = (0..names.len()).filter(|&to| row[to] && reach[to][from]).collect();
        if circle.len() > 1 && seen.insert(circle.clone()) {
            circles.push(circle.into_iter().map(|i| names[i].clone()).collect());
        }
    }
    circles
}

fn collect(folder: &Path, place: &mut Module, files: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
        if path.is_dir() {
            place.push(name);
            collect(&path, place, files);
            place.pop();
        } else if path.extension().is_some_and(|end| end == "rs") && name != "tests" && name != "main" {
            let mut module = place.clone();
            if !matches!(name.as_str(), "mod" | "lib") {
                module.push(name);
            }
            files.insert(module, fs::read_to_string(&path).expect("a source file"));
        }
    }
}

/// What every file says: the paths in it, and which of its names come from elsewhere.
struct Sources {
    paths: BTreeMap<Module, Vec<Named>>,
    imported: BTreeMap<Module, BTreeMap<String, Module>>,
}

impl Sources {
    fn new(files: &BTreeMap<Module, String>) -> Self {
        let paths: BTreeMap<Module, Vec<Named>> =
            files.iter().map(|(module, text)| (module.clone(), paths(&without_tests(text)))).collect();
        let imported = paths.iter().map(|(here, paths)| {
            let names = paths.iter().filter_map(|path| {
                let known_as = path.known_as.clone()?;
                Some((known_as, resolve(here, &path.parts, files)?))
            });
            (here.clone(), names.collect())
        });
        Self { imported: imported.collect(), paths: paths.clone() }
    }

    /// The modules that `here` names.
    fn named(&self, here: &Module) -> BTreeSet<Module> {
        let found = self.paths[here].iter().filter_map(|path| resolve(here, &path.parts, &self.paths));
        found.filter_map(|path| self.home(path)).filter(|module| module != here).collect()
    }

    /// The module in which what `path` means is written: a name that a module hands on is looked up where it comes from.
    fn home(&self, mut path: Module) -> Option<Module> {
        // A chain of modules that hand a name on is short; a loop of them would not compile.
        for _ in 0..8 {
            let len = (0..=path.len()).rev().find(|&len| self.paths.contains_key(&path[..len]))?;
            let (module, rest) = (path[..len].to_vec(), &path[len..]);
            let further = rest.first().and_then(|name| self.imported[&module].get(name));
            let Some(further) = further else { return Some(module) };
            let next: Module = further.iter().chain(&rest[1..]).cloned().collect();
            if next == path {
                return Some(module);
            }
            path = next;
        }
        None
    }
}

/// Comments, and everything from the first test module on, left out: tests stand at the end of a file.
fn without_tests(text: &str) -> String {
    let mut lines = Vec::new();
    let mut rest = text.lines().peekable();
    while let Some(line) = rest.next() {
        let line = line.split("//").next().unwrap_or_default();
        let next = rest.peek().map_or("", |next| next.trim_start());
        if line.trim() == "#[cfg(test)]" && (next.starts_with("mod ") || next.starts_with("pub mod ")) {
            if next.ends_with('{') {
                break;
            }
            rest.next();
            continue;
        }
        lines.push(line);
    }
    lines.join("\n")
}

/// A path in a source file.
#[derive(Clone, Debug)]
struct Named {
    parts: Module,
    /// The name by which a `use` makes it known.
    known_as: Option<String>,
}

/// Every path in `use` declarations, with their braces opened, and every path in code that begins with `crate`, `super`
/// or `self`.
fn paths(code: &str) -> Vec<Named> {
    let mut found = Vec::new();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut rest = code;
    while let Some(at) = rest.find(|c: char| is_word(c)) {
        rest = &rest[at..];
        let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        match word {
            "use" => {
                let (tree, after) = after.split_once(';').unwrap_or((after, ""));
                open(tree, &[], &mut found);
                rest = after;
            }
            "crate" | "super" | "self" => {
                let mut path = vec![word.to_owned()];
                while let Some(after) = rest.strip_prefix("::") {
                    let end = after.find(|c: char| !is_word(c)).unwrap_or(after.len());
                    if end == 0 {
                        break;
                    }
                    path.push(after[..end].to_owned());
                    rest = &after[end..];
                }
                if path.len() > 1 {
                    found.push(Named { parts: path, known_as: None });
                }
            }
            _ => {}
        }
    }
    found
}

/// The paths of a use tree below `prefix`.
fn open(tree: &str, prefix: &[String], found: &mut Vec<Named>) {
    let tree = tree.trim();
    if let Some((head, inner)) = tree.split_once('{') {
        let mut prefix = prefix.to_vec();
        prefix.extend(head.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned));
        let inner = inner.rsplit_once('}').map_or(inner, |(inner, _)| inner);
        let (mut depth, mut start) = (0, 0);
        for (at, c) in inner.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    open(&inner[start..at], &prefix, found);
                    start = at + 1;
                }
                _ => {}
            }
        }
        open(&inner[start..], &prefix, found);
    } else if !tree.is_empty() {
        let (name, renamed) =
            tree.split_once(" as ").map_or((tree, None), |(name, renamed)| (name, Some(renamed)));
        let mut path = prefix.to_vec();
        path.extend(name.split("::").map(|part| part.trim().to_owned()));
        if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
            path.pop();
        }
        let known_as =
            renamed.map_or_else(|| path.last().cloned(), |renamed| Some(renamed.trim().to_owned()));
        found.push(Named { parts: path, known_as });
    }
}

/// A path as seen from `here`, from the crate's root; `None` for one into another crate.
fn resolve<T>(here: &Module, path: &[String], modules: &BTreeMap<Module, T>) -> Option<Module> {
    let (first, rest) = path.split_first()?;
    let mut from = match first.as_str() {
        "crate" => Vec::new(),
        "self" => here.clone(),
        "super" => here.split_last()?.1.to_vec(),
        child => {
            let mut below = here.clone();
            below.push(child.to_owned());
            return modules.contains_key(&below).then(|| here.iter().chain(path).cloned().collect());
        }
    };
    for part in rest {
        match part.as_str() {
            "super" => drop(from.pop()),
            part => from.push(part.to_owned()),
        }
    }
    Some(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(path: &str) -> Module {
        path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    fn imports(files: &[(&str, &str)]) -> Imports {
        Imports::of_sources(&files.iter().map(|(name, text)| (module(name), (*text).to_owned())).collect())
    }

    #[test]
    fn arrows_are_found_in_uses_and_in_code() {
        let read = imports(&[
            ("", "mod a; mod b;"),
            ("a", "use crate::{b::{self, Thing}, c::Other as Else};\n"),
            ("b", "fn f() { crate::c::g(); super::d::h() }"),
            ("c", "// use crate::a;\n#[cfg(test)]\nmod tests {\n use crate::a;\n}"),
            ("d", "use std::fmt;\n"),
        ]);
        assert_eq!(read.of("a"), ["b", "c"]);
        assert_eq!(read.of("b"), ["c", "d"]);
        assert_eq!((read.of("c"), read.of("d")), (vec![], vec![]));
        assert!(read.circles().is_empty());
    }

    #[test]
    fn circles_are_found_and_parents_are_no_arrows() {
        let read = imports(&[
            ("", ""),
            ("a", "use self::x::X;"),
            ("a::x", "use super::A; use super::y::Y;"),
            ("a::y", "use crate::b::B;"),
            ("b", "use crate::a::x::X;"),
        ]);
        assert_eq!(read.circles(), [["a::x", "a::y", "b"]]);
    }

    #[test]
    fn rooms_are_held_as_wholes() {
        let read = imports(&[
            ("", ""),
            ("a::x", "use crate::b::y::Y;"),
            ("a::z", ""),
            ("b::y", "use crate::c::C;"),
            ("b::w", "use crate::a::z::Z;"),
            ("c", ""),
        ]);
        assert!(read.circles().is_empty());
        assert_eq!(read.room_circles("", &[]), [["a", "b"]]);
        assert!(read.room_circles("", &[("b", "a")]).is_empty());
        assert!(read.room_circles("a", &[]).is_empty());
    }

    #[test]
    fn a_name_that_is_handed_on_belongs_to_where_it_is_written() {
        let read = imports(&[
            ("", "pub use a::A;"),
            ("a", "mod x; mod y; pub use x::{Inner as A, X};"),
            ("a::x", "use super::y::Y;"),
            ("a::y", "use super::X;"),
            ("b", "use crate::A;"),
        ]);
        assert_eq!((read.of("b"), read.of("a::y")), (vec!["a::x".to_owned()], vec!["a::x".to_owned()]));
        assert_eq!(read.circles(), [["a::x", "a::y"]]);
    }
}
