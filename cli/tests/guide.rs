//! Every `justitia` command that the README and the guide give is one that the program takes.

use std::fs;
use std::path::Path;

use clap::error::ErrorKind;

/// The commands in lines that are indented by four, as the documents show them, and in backticks.
fn commands(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    // What is fenced is a drawing.
    let text: String = text.split("```").step_by(2).collect();
    let shown = text.lines().filter_map(|line| line.strip_prefix("    "));
    let quoted = text.split('`').skip(1).step_by(2);
    for line in shown.chain(quoted) {
        let line = line.split("  #").next().unwrap_or(line);
        for command in line.split(" && ") {
            let words = command.split_whitespace();
            let words: Vec<&str> = words.skip_while(|word| *word == "sudo").collect();
            let (Some(&"justitia"), true) = (words.first(), words.len() > 1) else {
                continue;
            };
            // What a shell does with its output, and what is left out.
            let end =
                |word: &&&str| !["|", "…", ">", "&", "·"].contains(*word) && !word.starts_with('>');
            let words = words.iter().take_while(end);
            found.push(words.map(|word| (*word).to_owned()).collect());
        }
    }
    found
}

/// A word in capitals stands for one of the reader's own.
fn filled(word: &str) -> String {
    let is_placeholder = word.len() > 1
        && word
            .chars()
            .all(|c| c.is_ascii_uppercase() || "/_".contains(c));
    match word {
        "SECONDS" | "WEIGHT" => "10".to_owned(),
        "SIZE" => "1GiB".to_owned(),
        word if is_placeholder => word.to_lowercase(),
        word => word.trim_matches(['"', '\'']).to_owned(),
    }
}

#[test]
fn every_command_of_the_guide_is_taken() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let guide = fs::read_dir(root.join("docs/guide")).unwrap();
    let guide = guide.map(|entry| entry.unwrap().path());
    let mut count = 0;
    for page in guide.chain([root.join("README.md")]) {
        let text = fs::read_to_string(&page).unwrap();
        for words in commands(&text) {
            let words = words.iter().map(|word| filled(word));
            let words: Vec<String> = words.collect();
            let taken = justitia::definition().try_get_matches_from(&words);
            let fine = match &taken {
                Ok(_) => true,
                // Named without all that it needs, or its help.
                Err(error) => {
                    error.to_string().contains("a value is required")
                        || matches!(
                            error.kind(),
                            ErrorKind::MissingRequiredArgument
                                | ErrorKind::MissingSubcommand
                                | ErrorKind::DisplayHelp
                                | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                        )
                }
            };
            assert!(
                fine,
                "{}: {}: {}",
                page.display(),
                words.join(" "),
                taken.unwrap_err()
            );
            count += 1;
        }
    }
    assert!(count >= 60, "{count} commands");
}
