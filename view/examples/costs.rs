//! What top and recordings cost with made-up tenants: `cargo run --release -p justitia-view --example costs`.

use std::sync::Arc;
use std::time::Instant;

use justitia_api::Status;
use justitia_view::record::{Recorder, Recording};
use justitia_view::top::draw::Theme;
use justitia_view::top::draw::draw;
use justitia_view::top::fixture;
use justitia_view::top::view::View;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

const TENANTS: usize = 1000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("justitia-costs-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let path = dir.join("recording");
    let mut recorder = Recorder::create(&path)?;
    let begun = Instant::now();
    for second in 0..600 {
        recorder.record(&fixture::status(TENANTS, second))?;
    }
    recorder.finish()?;
    let bytes = std::fs::metadata(&path)?.len();
    let hourly = f64::from(u32::try_from(bytes)?) * 6.0 / 1000.0;
    println!(
        "recording: {hourly:.0} bytes a tenant and hour (3 of 8 busy), {:.2} ms a second of {TENANTS} tenants",
        begun.elapsed().as_secs_f64() / 600.0 * 1e3
    );

    let begun = Instant::now();
    let mut recording = Recording::open(&path)?;
    let mut view = View::of("recording");
    let mut terminal = Terminal::new(TestBackend::new(80, 24))?;
    view.take(recording.status(300)?);
    terminal.draw(|frame| draw(frame, &mut view, Theme { colour: true }))?;
    println!(
        "top: first frame after {:.1} ms (recording opened, block read, drawn)",
        begun.elapsed().as_secs_f64() * 1e3
    );

    let text = serde_json::to_vec(&fixture::status(TENANTS, 5))?;
    let begun = Instant::now();
    for _ in 0..100 {
        let status: Status = serde_json::from_slice(&text)?;
        view.take(Arc::new(status));
        terminal.draw(|frame| draw(frame, &mut view, Theme { colour: true }))?;
    }
    let each = begun.elapsed().as_secs_f64() / 100.0;
    println!(
        "top: {:.2} ms a frame, answer of {} KiB parsed, so {:.2} % of a CPU at one a second",
        each * 1e3,
        text.len() / 1024,
        each * 100.0
    );
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
