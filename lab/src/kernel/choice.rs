//! Which kernel to boot.

use std::path::PathBuf;

/// Which kernel to boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelChoice {
    /// The newest stock kernel of a series that the archive has (`6.12`, `6.1`).
    Series(String),
    /// A bootable image, with its modules at `../lib/modules/RELEASE` or `/lib/modules/RELEASE`.
    Path(PathBuf),
}

impl Default for KernelChoice {
    fn default() -> Self {
        Self::Series("6.12".to_owned())
    }
}

impl std::str::FromStr for KernelChoice {
    type Err = std::convert::Infallible;

    /// Digits and dots name a series, anything else a path.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let series = text.contains('.') && text.chars().all(|c| c.is_ascii_digit() || c == '.');
        Ok(if series {
            Self::Series(text.to_owned())
        } else {
            Self::Path(text.into())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_a_series_or_a_path() {
        let parse = |text: &str| text.parse::<KernelChoice>().unwrap();
        assert_eq!(parse("6.1"), KernelChoice::Series("6.1".into()));
        assert_eq!(
            parse("./vmlinuz-6.9"),
            KernelChoice::Path("./vmlinuz-6.9".into())
        );
    }
}
