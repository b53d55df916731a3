//! The charts: seconds per step, and memory over time above the bytes on disk.

use std::error::Error;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::monitor::{Line, Lines};
use super::place::Kind;
use super::report::mib;
use crate::Result;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A step, and for each program its seconds on each place.
pub type Panel = (&'static str, Vec<(String, Vec<f64>)>);

const FONT: &str = "sans-serif";
const GREY: RGBColor = RGBColor(110, 110, 110);

fn colour(kind: Kind) -> RGBColor {
    match kind {
        Kind::Ext4 => RGBColor(120, 120, 120),
        Kind::Covey => RGBColor(24, 105, 175),
        Kind::Mem => RGBColor(225, 125, 35),
    }
}

fn failed(error: impl Error) -> Box<dyn Error + Send + Sync> {
    format!("the chart cannot be drawn: {error}").into()
}

/// Draws a panel of bars for each step. Returns whether there was anything to draw.
///
/// # Errors
/// The file cannot be written.
pub fn times(path: &Path, kinds: &[Kind], steps: &[Panel]) -> Result<bool> {
    let steps: Vec<_> = steps.iter().filter(|(_, bars)| !bars.is_empty()).collect();
    if steps.is_empty() {
        return Ok(false);
    }
    let rows = steps.len().div_ceil(2);
    let root = SVGBackend::new(path, (1000, 260 * rows as u32)).into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    for (area, (step, bars)) in root.split_evenly((rows, 2)).iter().zip(steps) {
        panel(area, kinds, step, bars)?;
    }
    root.present().map_err(failed)?;
    Ok(true)
}

fn panel(area: &Area, kinds: &[Kind], step: &str, bars: &[(String, Vec<f64>)]) -> Result<()> {
    let top = bars.iter().flat_map(|(_, seconds)| seconds).copied().fold(0.0, f64::max).max(1e-6) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{step}, seconds"), (FONT, 16))
        .margin(8)
        .x_label_area_size(24)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..bars.len() as f64, 0.0..top)
        .map_err(failed)?;
    // Names of programs are drawn by hand below the middle of their bars, because the axis would put them
    // between the bars.
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .y_labels(5)
        .light_line_style(TRANSPARENT)
        .y_label_formatter(&|value| if top < 1.0 { format!("{value:.3}") } else { format!("{value:.1}") })
        .draw()
        .map_err(failed)?;
    let width = 0.8 / kinds.len() as f64;
    for (place, kind) in kinds.iter().enumerate() {
        let bar = |(number, (_, seconds)): (usize, &(String, Vec<f64>))| {
            let left = number as f64 + 0.1 + place as f64 * width;
            Rectangle::new([(left, 0.0), (left + width * 0.92, seconds[place])], colour(*kind).filled())
        };
        chart
            .draw_series(bars.iter().enumerate().map(bar))
            .map_err(failed)?
            .label(kind.name())
            .legend(|(x, y)| Rectangle::new([(x, y - 4), (x + 10, y + 4)], colour(*kind).filled()));
    }
    legend(&mut chart)?;
    for (number, (name, _)) in bars.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(number as f64 + 0.5, 0.0));
        let (left, above) = area.get_base_pixel();
        // An estimate of the width, good enough to keep names apart.
        let at = (x - left - name.len() as i32 * 3, y - above + 6);
        area.draw(&Text::new(name.clone(), at, (FONT, 12).into_font().color(&GREY))).map_err(failed)?;
    }
    Ok(())
}

/// Draws the daemons' memory above the bytes on disk, over the same time. Returns whether there was anything
/// to draw.
///
/// # Errors
/// The file cannot be written.
pub fn memory(path: &Path, lines: &Lines, target_bytes: u64) -> Result<bool> {
    let last = lines.memory.values().chain(lines.stored.values()).filter_map(|line| line.last());
    let end = last.map(|(at, _)| *at).fold(0.0, f64::max);
    if lines.memory.is_empty() || end <= 0.0 {
        return Ok(false);
    }
    let root = SVGBackend::new(path, (1000, 640)).into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    let (above, below) = root.split_vertically(320);
    let target: Line = vec![(0.0, target_bytes), (end, target_bytes)];
    curves(&above, "memory of the daemon, MiB", end, &lines.memory, Some(&target), &lines.marks)?;
    curves(&below, "bytes on disk (mem: stored), MiB", end, &lines.stored, None, &lines.marks)?;
    root.present().map_err(failed)?;
    Ok(true)
}

fn curves(
    area: &Area,
    caption: &str,
    end: f64,
    lines: &std::collections::BTreeMap<Kind, Line>,
    target: Option<&Line>,
    marks: &[(f64, String)],
) -> Result<()> {
    let all = lines.values().chain(target).flatten();
    let top = all.map(|(_, bytes)| mib(*bytes)).fold(1.0, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption(caption, (FONT, 16))
        .margin(8)
        .x_label_area_size(28)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..end, 0.0..top)
        .map_err(failed)?;
    chart.configure_mesh().x_desc("seconds").light_line_style(TRANSPARENT).draw().map_err(failed)?;
    // Marks where the next program begins.
    let mut program = "";
    for (at, what) in marks {
        let name = what.split(',').next().unwrap_or("");
        if name != program {
            program = name;
            chart.draw_series(LineSeries::new([(*at, 0.0), (*at, top)], GREY.mix(0.4))).map_err(failed)?;
            let text = Text::new(name.to_owned(), (*at, top * 0.99), (FONT, 11).into_font().color(&GREY));
            chart.draw_series([text]).map_err(failed)?;
        }
    }
    for (kind, line) in lines {
        chart
            .draw_series(LineSeries::new(line.iter().map(|(at, bytes)| (*at, mib(*bytes))), colour(*kind)))
            .map_err(failed)?
            .label(kind.name())
            .legend(|(x, y)| Rectangle::new([(x, y - 1), (x + 10, y + 1)], colour(*kind).filled()));
    }
    if let Some(target) = target {
        let points = target.iter().map(|(at, bytes)| (*at, mib(*bytes)));
        chart
            .draw_series(DashedLineSeries::new(points, 6, 4, RED.into()))
            .map_err(failed)?
            .label("target")
            .legend(|(x, y)| Rectangle::new([(x, y - 1), (x + 10, y + 1)], RED.filled()));
    }
    legend(&mut chart)
}

fn legend<'a, 'b: 'a, X>(chart: &mut ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, X>>) -> Result<()>
where
    X: Ranged<ValueType = f64> + plotters::coord::ranged1d::ValueFormatter<f64>,
{
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .label_font((FONT, 12))
        .draw()
        .map_err(failed)
}
