//! Texts that fit.

/// A text that has `width` columns at most.
pub(super) fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(3)).collect();
    format!("{}...", kept.trim_end())
}

/// The end of a name tells more than its beginning.
pub(super) fn shorten(name: &str, width: usize) -> String {
    let length = name.chars().count();
    if length <= width {
        return name.to_owned();
    }
    let begin: String = name.chars().take(width / 3).collect();
    let end: String = name.chars().skip(length + 1 + width / 3 - width).collect();
    format!("{begin}~{end}")
}
