//! A moment of a recording as top shows it, as SVG: `cargo run -p justitia-view --example picture -- FILE [SECOND]`.

use std::path::Path;

use justitia_view::record::Recording;
use justitia_view::top::draw::Theme;
use justitia_view::top::draw::draw;
use justitia_view::top::svg::svg;
use justitia_view::top::view::View;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("expected the name of a recording")?;
    let mut recording = Recording::open(Path::new(&file))?;
    let last = recording.len().saturating_sub(1);
    let position = match arguments.next() {
        Some(second) => recording.position(recording.span().0 + second.parse::<f64>()?)?,
        None => last,
    };
    let mut view = View::of("the agent");
    // What came before is what bars and histories are drawn from.
    for before in position.saturating_sub(60)..=position {
        view.take(recording.status(before)?);
    }
    let mut terminal = Terminal::new(TestBackend::new(110, 14))?;
    terminal.draw(|frame| draw(frame, &mut view, Theme { colour: true }))?;
    print!("{}", svg(terminal.backend().buffer()));
    Ok(())
}
