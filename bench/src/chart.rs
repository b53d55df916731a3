//! Charts, as SVG text.

use plotters::prelude::*;

use crate::Result;

/// Groups of horizontal bars on a logarithmic axis around 1.
pub struct Bars {
    /// The title above the chart.
    pub title: String,
    /// The names of the series, one colour each.
    pub series: Vec<String>,
    /// A row's name, and its value in each series.
    pub rows: Vec<(String, Vec<Option<f64>>)>,
}

/// Lines on two logarithmic axes.
pub struct Lines {
    /// The title above the chart.
    pub title: String,
    /// The labels of the axes.
    pub axes: (String, String),
    /// A line's name and its points.
    pub series: Vec<(String, Vec<(f64, f64)>)>,
}

/// Colours that people with colour blindness can distinguish, too.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(120, 120, 120),
];
const WIDTH: u32 = 1000;

fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

/// The smallest and largest of some values, with a small margin on both sides of a logarithmic axis.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) =
        values.fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    if high > 0.0 { (low / 1.3, high * 1.3) } else { (0.5, 2.0) }
}

/// Draws bars.
///
/// # Errors
/// The drawing library refuses.
pub fn bars(of: &Bars) -> Result<String> {
    let mut svg = String::new();
    let lines = of.rows.len() * (of.series.len() + 1);
    let height = 110 + lines as u32 * 13;
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let (low, high) = range(of.rows.iter().flat_map(|(_, values)| values.iter().flatten().copied()));
        let (low, high) = (low.min(0.8), high.max(1.25));
        let mut chart = ChartBuilder::on(&root)
            .caption(&of.title, ("sans-serif", 17))
            .margin(12)
            .margin_left(360)
            .x_label_area_size(30)
            .build_cartesian_2d((low..high).log_scale(), 0.0..lines as f64)?;
        chart.configure_mesh().disable_y_mesh().disable_y_axis().light_line_style(WHITE).draw()?;
        let names = ("sans-serif", 13).into_text_style(&root);
        let area = chart.plotting_area();
        let mut at = lines as f64;
        for (name, values) in &of.rows {
            let (_, y) = area.map_coordinate(&(1.0, at - of.series.len() as f64 / 2.0));
            root.draw_text(name, &names, (14, y - 7))?;
            for (index, value) in values.iter().enumerate() {
                if let Some(value) = value {
                    let corners = [(1.0, at), (*value, at - 0.9)];
                    area.draw(&Rectangle::new(corners, colour(index).filled()))?;
                }
                at -= 1.0;
            }
            at -= 1.0;
        }
        area.draw(&PathElement::new(vec![(1.0, 0.0), (1.0, lines as f64)], BLACK))?;
        for (index, name) in of.series.iter().enumerate() {
            let x = 370 + 150 * index as i32;
            let y = height as i32 - 20;
            root.draw(&Rectangle::new([(x, y), (x + 10, y + 10)], colour(index).filled()))?;
            root.draw_text(&format!("/ {name}"), &names, (x + 15, y - 2))?;
        }
        root.present()?;
    }
    Ok(svg)
}

/// Draws lines.
///
/// # Errors
/// The drawing library refuses.
pub fn lines(of: &Lines) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, 480)).into_drawing_area();
        root.fill(&WHITE)?;
        let points = || of.series.iter().flat_map(|(_, points)| points.iter());
        let (x_low, x_high) = range(points().map(|point| point.0));
        let (y_low, y_high) = range(points().map(|point| point.1));
        let mut chart = ChartBuilder::on(&root)
            .caption(&of.title, ("sans-serif", 17))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d((x_low..x_high).log_scale(), (y_low..y_high).log_scale())?;
        chart.configure_mesh().x_desc(&of.axes.0).y_desc(&of.axes.1).light_line_style(WHITE).draw()?;
        for (index, (name, points)) in of.series.iter().enumerate() {
            let style = colour(index).stroke_width(2);
            chart
                .draw_series(LineSeries::new(points.iter().copied(), style).point_size(3))?
                .label(name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], style));
        }
        chart.configure_series_labels().background_style(WHITE).border_style(BLACK).draw()?;
        root.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_show_their_names() {
        let rows = vec![
            ("stat".to_owned(), vec![Some(1.1), None]),
            ("open".to_owned(), vec![Some(0.5), Some(40.0)]),
        ];
        let svg =
            bars(&Bars { title: "T".into(), series: vec!["ext4".into(), "null".into()], rows }).unwrap();
        for text in ["stat", "open", "/ ext4", "/ null", "</svg>"] {
            assert!(svg.contains(text), "{text}");
        }
        let series = vec![("one".to_owned(), vec![(1.0, 1.0), (2.0, 1.5)]), ("none".to_owned(), Vec::new())];
        let svg = lines(&Lines { title: "T".into(), axes: ("x".into(), "y".into()), series }).unwrap();
        assert!(svg.contains("one") && svg.contains("</svg>"));
    }

    #[test]
    fn an_empty_chart_is_drawn_too() {
        assert!(bars(&Bars { title: String::new(), series: Vec::new(), rows: Vec::new() }).is_ok());
    }
}
