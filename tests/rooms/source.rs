//! Reads the sources of a crate: what each file uses, and how long it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

use crate::graph::Edges;

/// The segments of a path.
type Segments = Vec<String>;

/// One file, without its tests.
pub struct File {
    /// From the root of the repository, such as `src/api/mod.rs`.
    pub path: String,
    /// The module that it is, such as `api::labels`; empty for `lib.rs`.
    pub module: Segments,
    /// Paths of this crate that it uses, from the crate's root.
    pub inside: BTreeSet<Segments>,
    /// Paths of other crates that it uses.
    pub outside: BTreeSet<Segments>,
    /// Names that it publishes from another file, with where they come from.
    publishes: BTreeMap<String, Segments>,
    /// Lines that are neither blank nor comment nor test.
    pub code_lines: usize,
}

/// All files of a crate.
pub struct Sources {
    files: BTreeMap<Segments, File>,
}

impl Sources {
    /// Reads all files below a folder.
    pub fn read(folder: &Path) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut found = Vec::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let text = fs::read_to_string(&path).unwrap();
                    found.push((path.strip_prefix(root).unwrap().display().to_string(), text));
                }
            }
        }
        let folder = folder.strip_prefix(root).unwrap().display().to_string();
        Self::parse(found.into_iter(), &folder)
    }

    /// Parses files: their paths, which begin with the crate's folder, and their texts.
    pub fn parse(files: impl Iterator<Item = (String, String)>, folder: &str) -> Self {
        let texts: BTreeMap<Segments, (String, String)> =
            files.map(|(path, text)| (module_of(&path, folder), (path, text))).collect();
        let modules: BTreeSet<Segments> = texts.keys().cloned().collect();
        let mut files = BTreeMap::new();
        let mut for_tests = BTreeSet::new();
        for (module, (path, text)) in texts {
            let syntax = syn::parse_file(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
            let mut reader = Reader::new(&modules, module.clone());
            reader.visit_file(&syntax);
            for_tests.extend(reader.for_tests);
            let file = File {
                code_lines: code_lines(&text),
                path,
                module: module.clone(),
                inside: reader.inside,
                outside: reader.outside,
                publishes: reader.publishes,
            };
            files.insert(module, file);
        }
        files.retain(|module, _| !for_tests.iter().any(|test| module.starts_with(test)));
        Self { files }
    }

    pub fn files(&self) -> impl Iterator<Item = &File> {
        self.files.values()
    }

    /// Which file uses which.
    pub fn edges(&self) -> Edges {
        let targets = |file: &File| {
            let used = file.inside.iter().filter_map(|path| self.home_of(path, 0));
            used.filter(|home| home.path != file.path).map(|home| home.path.clone()).collect()
        };
        self.files().map(|file| (file.path.clone(), targets(file))).collect()
    }

    /// The file that defines what the path names: publications of other files are followed.
    fn home_of(&self, path: &[String], depth: usize) -> Option<&File> {
        assert!(depth < 16, "a publication leads back to itself: {path:?}");
        let length = (0..=path.len()).rev().find(|length| self.files.contains_key(&path[..*length]))?;
        let file = &self.files[&path[..length]];
        match path.get(length).and_then(|name| file.publishes.get(name)) {
            Some(source) => self.home_of(source, depth + 1),
            None => Some(file),
        }
    }
}

fn module_of(path: &str, folder: &str) -> Segments {
    let inside = path.strip_prefix(folder).unwrap().trim_start_matches('/').trim_end_matches(".rs");
    let mut module: Segments = inside.split('/').map(str::to_owned).collect();
    if module.last().is_some_and(|last| last == "mod") || inside == "lib" {
        module.pop();
    }
    module
}

/// Lines that are neither blank nor comment, up to the tests. Formatted code has `#[cfg(test)]` of a whole module at
/// the beginning of a line, and its end, too.
fn code_lines(text: &str) -> usize {
    let mut in_tests = false;
    let mut count = 0;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "#[cfg(test)]" && lines.peek().is_some_and(|next| next.starts_with("mod ")) {
            in_tests = lines.peek().is_some_and(|next| next.ends_with('{'));
            lines.next();
        } else if in_tests {
            in_tests = line != "}";
        } else if !line.trim().is_empty() && !line.trim_start().starts_with("//") {
            count += 1;
        }
    }
    count
}

/// Collects what one file uses.
struct Reader<'a> {
    modules: &'a BTreeSet<Segments>,
    module: Segments,
    /// Depth of modules within the file.
    nested: Segments,
    inside: BTreeSet<Segments>,
    outside: BTreeSet<Segments>,
    publishes: BTreeMap<String, Segments>,
    for_tests: BTreeSet<Segments>,
}

impl<'a> Reader<'a> {
    fn new(modules: &'a BTreeSet<Segments>, module: Segments) -> Self {
        Self {
            modules,
            module,
            nested: Segments::new(),
            inside: BTreeSet::new(),
            outside: BTreeSet::new(),
            publishes: BTreeMap::new(),
            for_tests: BTreeSet::new(),
        }
    }

    /// The path from the crate's root, if it names something of this crate by way of a module.
    fn absolute(&self, path: &[String]) -> Option<Segments> {
        let here: Segments = self.module.iter().chain(&self.nested).cloned().collect();
        let (base, rest) = match path.first()?.as_str() {
            "crate" => (Segments::new(), &path[1..]),
            "self" => (here, &path[1..]),
            "super" => {
                let ups = path.iter().take_while(|segment| *segment == "super").count();
                (here[..here.len().checked_sub(ups)?].to_vec(), &path[ups..])
            }
            // A name alone is a variable or an item, never a module.
            name if path.len() > 1 => {
                let mut child = here.clone();
                child.push(name.to_owned());
                if !self.modules.contains(&child) {
                    return None;
                }
                (here, path)
            }
            _ => return None,
        };
        Some(base.into_iter().chain(rest.iter().cloned()).collect())
    }

    fn add(&mut self, path: &[String]) {
        match self.absolute(path) {
            Some(path) if path.is_empty() => {}
            Some(path) => _ = self.inside.insert(path),
            None => match self.publishes.get(&path[0]) {
                Some(source) => _ = self.inside.insert(source.clone()),
                None => _ = self.outside.insert(path.to_vec()),
            },
        }
    }

    /// Names in the arguments of a macro, which no parser has read: texts such as `crate :: api :: Role`.
    fn add_tokens(&mut self, text: &str) {
        // Not in literals: every second part between quotes is one, as long as none is escaped.
        let text = text.replace("\\\"", "");
        let text = text.split('"').step_by(2).collect::<Vec<_>>().join(" ");
        let words: Vec<&str> = text.split(|c: char| !(c.is_alphanumeric() || "_:".contains(c))).collect();
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        let mut at = 0;
        while at < words.len() {
            let mut path = vec![words[at].to_owned()];
            while at + 2 < words.len() && words[at + 1] == "::" {
                path.push(words[at + 2].to_owned());
                at += 2;
            }
            at += 1;
            if path[0] != ":" && path[0] != "::" && path[0] != "self" {
                self.add(&path);
            }
        }
    }
}

/// The paths of a `use` declaration, with the name that each gets.
fn expand(tree: &UseTree, before: &[String], found: &mut Vec<(Segments, String)>) {
    let with = |name: &syn::Ident| before.iter().cloned().chain([name.to_string()]).collect::<Segments>();
    match tree {
        UseTree::Path(path) => expand(&path.tree, &with(&path.ident), found),
        UseTree::Group(group) => group.items.iter().for_each(|tree| expand(tree, before, found)),
        UseTree::Glob(_) => found.push((before.to_vec(), "*".to_owned())),
        UseTree::Name(name) if name.ident == "self" => {
            found.push((before.to_vec(), before.last().cloned().unwrap_or_default()));
        }
        UseTree::Name(name) => found.push((with(&name.ident), name.ident.to_string())),
        UseTree::Rename(rename) => found.push((with(&rename.ident), rename.rename.to_string())),
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_file(&mut self, file: &'ast syn::File) {
        // Publications first, so that a use of a published name is noticed wherever it stands.
        for item in &file.items {
            if let Item::Use(item) = item
                && !matches!(item.vis, Visibility::Inherited)
            {
                let mut found = Vec::new();
                expand(&item.tree, &[], &mut found);
                for (path, name) in found {
                    if let Some(path) = self.absolute(&path) {
                        self.publishes.insert(name, path);
                    }
                }
            }
        }
        visit::visit_file(self, file);
    }

    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Mod(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            Item::Const(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        } else if let Item::Mod(item) = item
            && item.content.is_none()
        {
            let module = self.module.iter().cloned().chain([item.ident.to_string()]).collect();
            self.for_tests.insert(module);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.nested.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.nested.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let published = !matches!(item.vis, Visibility::Inherited);
        let mut found = Vec::new();
        expand(&item.tree, &[], &mut found);
        for (path, _) in found {
            let own = self.absolute(&path).is_some_and(|path| path.first() == self.module.first());
            // Publishing what a file of the same room defines is no use of it. From another room, it is.
            if !(published && own) {
                self.add(&path);
            }
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if segments != ["self"] {
            self.add(&segments);
        }
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast Visibility) {
        // `pub(super)` uses nothing.
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.add_tokens(&item.tokens.to_string());
        visit::visit_macro(self, item);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        // Derive macros take functions by path: `#[schemars(transform = rules::selector)]`.
        if let syn::Meta::List(list) = &attribute.meta {
            self.add_tokens(&list.tokens.to_string());
        }
    }
}
