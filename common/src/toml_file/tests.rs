//! What is wrong with a file is told at once, in the same words whatever the file is of.

use super::*;
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Disk {
    #[serde(rename = "size")]
    _size: Size,
    #[serde(default, rename = "mode")]
    _mode: Mode,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    #[default]
    Slow,
    Fast,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct All {
    number: u16,
    list: Vec<u8>,
    disk: Vec<Disk>,
}

/// What is wrong with `text`, and what the rest of it says.
fn read(text: &str) -> (Vec<String>, Option<All>) {
    let file = TomlFile::new(Path::new("t.toml"), text);
    let mut report = Report::new(&file);
    let mut table = report.parse();
    let all = report.read(&mut table);
    let errors = report.into_parts().0;
    (errors.iter().map(ToString::to_string).collect(), all)
}

#[test]
fn every_error_is_told_and_the_rest_is_read() {
    let (errors, rest) = read(
        "number = \"x\"\nlist = [1, 2, true]\nother = 1\n[[disk]]\nsize = 3\n[[disk]]\nsize = \"1 lot\"\nmode = \"idle\"\n\
         [[disk]]\nmode = \"fast\"\n",
    );
    assert_eq!(
        errors,
        [
            "t.toml:1: number: expected a whole number from 0 to 65535, found \"x\"",
            "t.toml:2: list: expected a whole number from 0 to 255, found true",
            "t.toml:3: expected one of `number`, `list`, `disk`, found the unknown key `other`: correct or remove it",
            "t.toml:7: disk.size: expected a size such as 64K, 256MiB, 1.5GiB or a number of bytes, found \"1 lot\"",
            "t.toml:8: disk.mode: expected `slow` or `fast`, found `idle`",
            "t.toml:9: disk: expected the key `size`, found none: add it",
        ]
    );
    let rest = rest.unwrap();
    assert_eq!((rest.number, rest.list), (0, vec![1, 2]));
    assert_eq!(rest.disk.len(), 1, "{:?}", rest.disk);
}

#[test]
fn a_key_that_is_missing_is_told_though_another_table_had_a_wrong_one() {
    let (errors, _) = read("[[disk]]\nsize = true\n[[disk]]\nmode = \"fast\"\n");
    assert_eq!(errors.len(), 2, "{errors:#?}");
    assert!(errors[1].starts_with("t.toml:3: disk: expected the key `size`"));
}

#[test]
fn what_follows_from_wrong_syntax_is_not_told_again() {
    for (text, lines) in [
        ("[[disk\nsize = \"x\"\n", &["t.toml:1:"][..]),
        ("number = 1\n[[disk\nlist = \"x\"\n", &["t.toml:2:"]),
        (
            "[[disk\nsize = 1\n[[disk]]\nsize = 1\nmode = 1\n",
            &["t.toml:1:", "t.toml:5:"],
        ),
        (
            "number = \nlist = true\nother = 2\n",
            &["t.toml:1:", "t.toml:2:", "t.toml:3:"],
        ),
    ] {
        let (errors, _) = read(text);
        let found: Vec<&str> = errors.iter().map(|e| &e[..9]).collect();
        assert_eq!(found, lines, "{errors:#?}");
    }
}

#[test]
fn a_position_after_other_files_says_the_line() {
    let first = TomlFile::new(Path::new("a"), "x = 1\ny = 2\n");
    let second = TomlFile::after(
        first.positions().end,
        Path::new("b\x1b"),
        "\nz = \"é\"\nw = 1",
    );
    let mut report = Report::new(&second);
    let table = report.parse();
    let at = table.get_ref().get("w").unwrap().span().start;
    assert!(second.positions().contains(&at) && !first.positions().contains(&at));
    assert_eq!(second.error(at, "no").to_string(), "b\\x1b:3: w: no");
    assert_eq!(second.error(None, "no").to_string(), "b\\x1b: no");
}

#[test]
fn a_file_of_nothing_but_errors_is_soon_read() {
    let text: String = (0..2_000).map(|i| format!("k{i} = 1\n")).collect();
    let (errors, rest) = read(&text);
    assert_eq!(errors.len(), MAX_FAULTS);
    assert!(rest.is_none());
}

#[test]
fn each_of_many_errors_says_its_line() {
    let text: String = (0..20_000).map(|_| "[[disk]]\nsize = 1\n").collect();
    let file = TomlFile::new(Path::new("t"), &text);
    let mut report = Report::new(&file);
    let _ = report.parse();
    for (at, _) in text.match_indices("size") {
        report.error(at, "no");
    }
    let errors = report.into_parts().0;
    assert_eq!(errors.len(), 20_000);
    assert_eq!(errors[99].to_string(), "t:200: disk.size: no");
    assert_eq!(errors[19_999].to_string(), "t:40000: no");
    // Wrong headers, each with keys that are not told.
    let (errors, _) = read(&"[[disk\nsize = x\n".repeat(2_000));
    assert_eq!(errors.len(), 2_000, "{:?}", &errors[..3]);
}

#[test]
fn a_size_has_all_that_64_bits_hold() {
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error, I64Deserializer, U64Deserializer};
    let from: U64Deserializer<Error> = u64::MAX.into_deserializer();
    assert_eq!(Size::deserialize(from), Ok(Size(u64::MAX)));
    let from: I64Deserializer<Error> = (-1_i64).into_deserializer();
    let error = Size::deserialize(from).unwrap_err().to_string();
    assert_eq!(
        reworded(&error),
        "expected a size such as 64K, 256MiB, 1.5GiB or a number of bytes, found -1"
    );
}

/// Names of types of Rust that serde tells.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Typed {
    #[serde(rename = "title")]
    _title: String,
    #[serde(default, rename = "count")]
    _count: u64,
    #[serde(default, rename = "many")]
    _many: i64,
    #[serde(default, rename = "part")]
    _part: f64,
    #[serde(default, rename = "on")]
    _on: bool,
    #[serde(default, rename = "at")]
    _at: Option<std::net::SocketAddr>,
    #[serde(default, rename = "path")]
    _path: Option<PathBuf>,
    #[serde(default, rename = "mode")]
    _mode: Option<Mode>,
    #[serde(default, rename = "disk")]
    _disk: Option<Box<Disk>>,
    #[serde(default, rename = "kind")]
    _kind: Option<Kind>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "is", rename_all = "lowercase", deny_unknown_fields)]
enum Kind {
    Round,
}

/// A file with one error at least, and a part of what is told.
const TYPED: &[(&str, &str)] = &[
    ("title = 3", "1: title: expected a string, found 3"),
    (
        "count = 3",
        "1: expected the key `title`, found none: add it",
    ),
    (
        "count = -1",
        "1: count: expected a whole number, not below 0, found -1",
    ),
    ("many = 1.5", "1: many: expected a whole number, found 1.5"),
    (
        "count = 0660",
        "1: expected a number without a zero before it, found one with: to keep the zero, quote it",
    ),
    ("part = \"x\"", "1: part: expected a number, found \"x\""),
    (
        "on = \"yes\"",
        "1: on: expected true or false, found \"yes\"",
    ),
    (
        "at = \"here\"",
        "1: at: expected an address and a port such as",
    ),
    ("path = [1]", "1: path: expected a path, found a list"),
    (
        "mode = \"fst\"",
        "1: mode: expected `slow` or `fast`, found `fst`: did you mean `fast`?",
    ),
    ("mode = [1]", "1: mode: expected a name"),
    ("disk = 7", "1: disk: expected a table, found 7"),
    (
        "[disk]\nsiez = 1",
        "2: disk: expected `size` or `mode`, found the unknown key `siez`: did you mean `size`?",
    ),
    ("[disk]\nsize = -5", "2: disk.size: expected a size such as"),
    (
        "[disk]\nmode = \"slow\"",
        "1: disk: expected the key `size`, found none: add it",
    ),
    ("kind = 1", "1: kind: expected a table, found 1"),
    ("[kind]\nis = \"square\"", "kind"),
    (
        "[kind]\n",
        "1: kind: expected the key `is`, found none: add it",
    ),
    (
        "titel = \"x\"",
        "found the unknown key `titel`: did you mean `title`?",
    ),
];

#[test]
fn an_error_names_the_key_and_no_type_of_rust() {
    for (text, told) in TYPED {
        let file = TomlFile::new(Path::new("t.toml"), text);
        let mut report = Report::new(&file);
        let mut table = report.parse();
        let _: Option<Typed> = report.read(&mut table);
        let errors = report.into_parts().0;
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(
            errors.iter().any(|e| e.contains(told)),
            "{text}: {errors:#?}"
        );
        for rust in [
            "u64", "i64", "f64", "struct", "enum", "variant", "Kind", "Disk", "Mode", "map",
            "sequence",
        ] {
            assert!(
                !errors.iter().any(|e| e.contains(rust)),
                "{rust}: {errors:#?}"
            );
        }
    }
}

#[test]
fn what_is_like_nothing_is_not_offered() {
    let choices = ["reread-x4", "hot-stream"];
    assert_eq!(
        did_you_mean("rereed", choices),
        ": did you mean `reread-x4`?"
    );
    assert_eq!(did_you_mean("zzz", choices), "");
    assert_eq!(
        none_of("an experiment", "hot-strem", choices),
        "expected an experiment (reread-x4, hot-stream), found \"hot-strem\": did you mean `hot-stream`?"
    );
}

#[test]
fn an_unknown_header_is_one_error() {
    for text in [
        "[[dsik]]\nsize = 1\n",
        "[[dsik]]\nsize = 1\n[[dsik]]\nsize = 2\n",
    ] {
        let file = TomlFile::new(Path::new("t.toml"), text);
        let mut report = Report::new(&file);
        let mut table = report.parse();
        let _: Option<Typed> = report.read(&mut table);
        let errors = report.into_parts().0;
        let found: Vec<_> = errors
            .iter()
            .filter(|e| e.what.contains("`dsik`"))
            .collect();
        assert_eq!(found.len(), 1, "{errors:#?}");
    }
}
