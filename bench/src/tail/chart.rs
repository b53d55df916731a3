//! The chart: p99 of open() and of read() over the number of readers, both axes logarithmic.

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::Result;

/// A line's name and its points: readers, microseconds.
pub type Line = (String, Vec<(f64, f64)>);

/// Colours that people with colour blindness can distinguish, too.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 0, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(230, 159, 0),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(130, 130, 130),
];

/// Draws panels side by side, one for each title.
///
/// # Errors
/// The drawing library refuses.
pub fn draw(heading: &str, panels: &[(&str, Vec<Line>)]) -> Result<String> {
    let mut svg = String::new();
    {
        let size = (620 * panels.len() as u32, 520);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        let body = root.titled(heading, ("sans-serif", 20))?;
        for (area, (title, lines)) in body.split_evenly((1, panels.len())).iter().zip(panels) {
            panel(area, title, lines)?;
        }
        root.present()?;
    }
    Ok(svg)
}

fn panel(area: &DrawingArea<SVGBackend<'_>, Shift>, title: &str, lines: &[Line]) -> Result<()> {
    let points = || lines.iter().flat_map(|(_, points)| points.iter());
    let (left, right) = range(points().map(|point| point.0), 1.2);
    let (low, high) = range(points().map(|point| point.1), 2.0);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d((left..right).log_scale(), (low..high).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("readers")
        .y_desc("microseconds")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .light_line_style(WHITE)
        .draw()?;
    for (index, (name, points)) in lines.iter().enumerate() {
        let style = COLOURS[index % COLOURS.len()].stroke_width(2);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style).point_size(3))?
            .label(name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    Ok(())
}

/// The smallest and largest value with a margin around them. If there is none, a range that can be drawn.
fn range(values: impl Iterator<Item = f64>, room: f64) -> (f64, f64) {
    let sound = values.filter(|value| *value > 0.0 && value.is_finite());
    let (low, high) = sound.fold((f64::INFINITY, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)));
    if high > 0.0 { (low / room, high * room) } else { (1.0, 10.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_names_its_lines_and_panels() {
        let lines = vec![
            ("tmpfs".to_owned(), vec![(1.0, 1.5), (256.0, 900.0)]),
            ("one point".to_owned(), vec![(4.0, 3.0)]),
        ];
        let svg = draw("all of it", &[("open()", lines.clone()), ("read()", lines), ("none", Vec::new())]);
        let svg = svg.unwrap();
        for text in ["<svg", "all of it", "open()", "read()", "tmpfs", "one point", "microseconds", "</svg>"]
        {
            assert!(svg.contains(text), "{text}");
        }
    }
}
