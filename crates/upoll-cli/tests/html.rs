//! The page that `upoll bench --html` writes: its content, that it loads nothing, and that a
//! browser draws it in light and dark mode.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const TABLES: [&str; 9] = [
    "comparisons",
    "peers",
    "fds",
    "polls",
    "growth",
    "timeouts",
    "workers",
    "threads",
    "backpressure",
];

/// Measures a little of everything, with files in `folder`. Returns the page and its figures.
fn measured(folder: &Path) -> (PathBuf, Value) {
    let (html, json) = (folder.join("page.html"), folder.join("figures.json"));
    let names = "wait-idle mod wake peers poll growth-wait timeout fds workers close shared \
                 eventfd";
    let output = Command::new(env!("CARGO_BIN_EXE_upoll"))
        .args(["bench", "--quick", "--html"])
        .arg(&html)
        .arg("--json")
        .arg(&json)
        .args(names.split_whitespace())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let figures = BufReader::new(File::open(json).unwrap());
    (html, serde_json::from_reader(figures).unwrap())
}

fn rows<'a>(figures: &'a Value, table: &str) -> &'a [Value] {
    figures[table].as_array().unwrap()
}

fn assert_says_what_was_measured(page: &str, figures: &Value) {
    for key in ["kernel_release", "cpu_model", "clock_source", "date"] {
        let said = figures["machine"][key].as_str().unwrap();
        assert!(page.contains(said), "{key}: {said}");
    }
    assert_eq!(page.matches("<table>").count(), TABLES.len());
    let [reached, missed] = ["yes", "no"].map(|is| page.matches(&format!(">{is}</td>")).count());
    let verdict = format!("{reached} of {} targets reached", reached + missed);
    assert!(page.contains(&verdict), "{verdict}");
    let measured: usize = TABLES.map(|table| rows(figures, table).len()).iter().sum();
    let shown = page.matches("<tr").count() - page.matches("<thead>").count();
    assert_eq!(shown, measured);
    for row in rows(figures, "comparisons") {
        let class = match row["trusted"].as_bool().unwrap() {
            true => "",
            false => " class=\"noisy\"",
        };
        let (name, what) = (row["name"].as_str().unwrap(), row["what"].as_str().unwrap());
        let against = row["against"].as_str().unwrap();
        let cells = [("name", name), ("operation", what), ("against", against)]
            .map(|(column, cell)| format!("<td data-column=\"{column}\">{cell}</td>"));
        let marked = format!("<tr{class}>{}", cells.concat());
        assert!(page.contains(&marked), "{marked}");
    }
}

/// Checks that the page loads nothing and runs no script.
fn assert_needs_nothing(page: &str) {
    for word in [
        "<script", "<link", "<img", " src=", "href=", "@import", "url(",
    ] {
        assert!(!page.contains(word), "{word}");
    }
    let without_namespace = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!without_namespace.contains("://"));
}

/// Returns the browser on this machine, if there is one.
fn browser() -> Option<&'static str> {
    let works = |name: &&str| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    };
    ["chromium", "google-chrome"].into_iter().find(works)
}

/// A headless browser and its options.
struct Browser<'a> {
    name: &'static str,
    folder: &'a Path,
    dark: bool,
    width: u32,
}

impl Browser<'_> {
    /// Opens a page. Returns the output and the messages of the browser.
    fn open(&self, page: &Path, height: u32, task: &str) -> [String; 2] {
        let output = Command::new("timeout")
            .arg("600")
            .arg(self.name)
            .args(["--headless", "--no-sandbox", "--disable-gpu"])
            .args(["--hide-scrollbars", "--enable-logging=stderr", "--v=0"])
            .arg(format!(
                "--user-data-dir={}",
                self.folder.join("profile").display()
            ))
            // Chromium's values of the setting: 0 is dark, 1 is light.
            .arg(format!(
                "--blink-settings=preferredColorScheme={}",
                u8::from(!self.dark)
            ))
            .arg(format!(
                "--window-size={},{height}",
                self.width.max(NARROWEST)
            ))
            .arg(task)
            .arg(format!("file://{}", page.display()))
            .output()
            .unwrap();
        let [printed, reported] =
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(output.status.success(), "{reported}");
        [printed, reported]
    }

    /// Runs `PROBE` in the page. Returns its result.
    fn probe(&self, page: &str) -> Value {
        let path = self.folder.join("probed.html");
        // The page's policy allows no scripts, and the probe is one.
        let end = page.find("<meta http-equiv").unwrap();
        let policy_ends = end + page[end..].find('>').unwrap() + 1;
        let open = format!("{}{}", &page[..end], &page[policy_ends..]);
        let mut probed = open.replace("</body>", &format!("{PROBE}</body>"));
        if self.width < NARROWEST {
            let quoted = probed.replace('&', "&amp;").replace('"', "&quot;");
            probed = self.frame(&format!("srcdoc=\"{quoted}\""), 1000);
        }
        fs::write(&path, probed).unwrap();
        let [dom, reported] = self.open(&path, 1000, "--dump-dom");
        assert!(
            reported.contains("CONSOLE") && reported.contains("heard"),
            "{reported}"
        );
        let (_, found) = dom.split_once("<pre id=\"found\">").expect("the probe ran");
        let (found, _) = found.split_once("</pre>").unwrap();
        serde_json::from_str(found).unwrap()
    }

    /// Returns a page that shows another one in the width of this browser.
    fn frame(&self, source: &str, height: u32) -> String {
        format!(
            "<!doctype html><body style=\"margin: 0\"><iframe style=\"border: 0; display: block\" \
             width=\"{}\" height=\"{height}\" {source}></iframe></body>",
            self.width
        )
    }

    /// Returns a picture of the unmodified page, in full height.
    fn screenshot(&self, page: &Path, height: u32) -> Picture {
        let path = self.folder.join("page.png");
        let mut shown = page.to_owned();
        if self.width < NARROWEST {
            shown = self.folder.join("framed.html");
            let frame = self.frame(&format!("src=\"file://{}\"", page.display()), height);
            fs::write(&shown, frame).unwrap();
        }
        let [_, reported] = self.open(&shown, height, &format!("--screenshot={}", path.display()));
        assert!(!reported.contains("CONSOLE"), "{reported}");
        Picture::read(&path)
    }
}

/// Reports the position of each plot, the positions of its marks, and their colours. It also logs
/// an error, to check that the test receives the messages.
const PROBE: &str = r##"<script>
console.error("heard");
const root = getComputedStyle(document.documentElement);
const names = ["noisy", ...Array(7).keys()].map(at => at === "noisy" ? "--noisy" : `--series-${at}`);
const place = box => [box.x + scrollX, box.y + scrollY, box.width, box.height];
const plots = [...document.querySelectorAll("figure")].map(figure => {
  const svg = figure.querySelector("svg");
  const drawn = [...svg.querySelectorAll("rect, circle, polyline, polygon, line")].map(mark => {
    const style = getComputedStyle(mark);
    const has = name => { const own = mark.getAttribute(name); return own && own !== "none" };
    return { colour: has("fill") ? style.fill : style.stroke, place: place(mark.getBoundingClientRect()) };
  });
  return {
    caption: figure.querySelector("figcaption").textContent,
    place: place(svg.getBoundingClientRect()),
    sizes: [...svg.querySelectorAll("text")].map(text =>
      parseFloat(getComputedStyle(text).fontSize) * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width),
    words: [...svg.querySelectorAll("text")].map(text => place(text.getBoundingClientRect())),
    legend: [...figure.querySelectorAll(".legend li")].map(item => item.textContent),
    swatches: [...figure.querySelectorAll(".legend li")]
      .map(item => getComputedStyle(item, "::before").backgroundColor),
    drawn,
  };
});
const colour = name => {
  const sample = document.createElement("i");
  sample.style.color = root.getPropertyValue(name);
  document.body.append(sample);
  const found = getComputedStyle(sample).color;
  sample.remove();
  return found;
};
const tables = [...document.querySelectorAll("table")].map(table => table.parentElement);
const found = {
  cut: tables.filter(place => place.scrollWidth > place.clientWidth)
    .map(place => place.parentElement.querySelector("h2").textContent),
  height: document.documentElement.scrollHeight,
  width: document.documentElement.scrollWidth,
  paper: getComputedStyle(document.body).backgroundColor,
  data: names.map(colour),
  plots,
};
const out = document.createElement("pre");
out.id = "found";
out.textContent = JSON.stringify(found);
parent.document.body.append(out);
</script>"##;

/// Parses `rgb(1, 2, 3)`.
fn rgb(colour: &Value) -> [u8; 3] {
    let text = colour.as_str().unwrap();
    let inner = text
        .strip_prefix("rgb(")
        .and_then(|text| text.strip_suffix(')'));
    let numbers = inner.unwrap_or_else(|| panic!("{text}")).split(", ");
    let numbers: Vec<u8> = numbers.map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

/// Left, top, width, height.
fn place(place: &Value) -> [f64; 4] {
    [0, 1, 2, 3].map(|at| place[at].as_f64().unwrap())
}

/// A window in which each table has all its columns.
const DESK: u32 = 1280;
/// The width of a large telephone's screen, and the least in which the page has to be legible.
const TELEPHONE: u32 = 480;

/// The width of Chromium's narrowest window. A narrower page is in a frame of the window.
const NARROWEST: u32 = 500;

struct Picture {
    width: usize,
    /// Three bytes each.
    pixels: Vec<[u8; 3]>,
}

impl Picture {
    fn read(path: &Path) -> Self {
        let decoder = png::Decoder::new(BufReader::new(File::open(path).unwrap()));
        let mut reader = decoder.read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut bytes).unwrap();
        let samples = info.color_type.samples();
        assert!(samples >= 3, "a picture in colours");
        let pixels = bytes[..info.buffer_size()].chunks_exact(samples);
        Picture {
            width: info.width as usize,
            pixels: pixels.map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect(),
        }
    }

    /// Returns the number of pixels of `place` that have about one of `colours`.
    fn count(&self, colours: &[[u8; 3]], place: [f64; 4]) -> usize {
        let [left, top, width, height] = place.map(|figure| figure as usize);
        let rows = self.pixels.chunks_exact(self.width).skip(top).take(height);
        let near = |pixel: &&[u8; 3]| {
            colours.iter().any(|colour| {
                let mut pairs = pixel.iter().zip(colour);
                pairs.all(|(one, other)| one.abs_diff(*other) <= 8)
            })
        };
        rows.map(|row| row[left..left + width].iter().filter(near).count())
            .sum()
    }
}

/// Checks that each plot has marks in its colours within its frame, and that the picture shows
/// them.
fn assert_drawn(found: &Value, picture: &Picture) {
    let data: Vec<_> = found["data"].as_array().unwrap().iter().map(rgb).collect();
    for plot in found["plots"].as_array().unwrap() {
        let caption = &plot["caption"];
        let frame = place(&plot["place"]);
        let [left, top, width, height] = frame;
        assert!(width > 400.0 && height > 60.0, "{caption}: {frame:?}");
        for word in plot["words"].as_array().unwrap() {
            let [x, _, word_width, _] = place(word);
            assert!(
                x >= left && x + word_width <= left + width,
                "{caption}: cut off"
            );
        }
        for size in plot["sizes"].as_array().unwrap() {
            let size = size.as_f64().unwrap();
            assert!(size >= 11.0, "{caption}: letters of {size} pixels");
        }
        let drawn = plot["drawn"].as_array().unwrap();
        let marks: Vec<_> = drawn
            .iter()
            .map(|mark| (rgb(&mark["colour"]), place(&mark["place"])))
            .filter(|(colour, _)| data.contains(colour))
            .collect();
        for (_, [x, y, mark_width, mark_height]) in &marks {
            assert!(*x >= left - 1.0 && *y >= top - 1.0, "{caption}: outside");
            assert!(x + mark_width <= left + width + 1.0, "{caption}: outside");
            assert!(y + mark_height <= top + height + 1.0, "{caption}: outside");
        }
        let legend = plot["swatches"].as_array().unwrap();
        for swatch in legend.iter().map(rgb) {
            let of = marks.iter().filter(|(colour, _)| *colour == swatch);
            // A line may be almost vertical or horizontal.
            let large =
                of.filter(|(_, [_, _, mark_width, mark_height])| mark_width + mark_height > 5.0);
            let large = large.count();
            assert!(large > 0, "{caption}: nothing in {swatch:?}");
        }
        let seen = picture.count(&data, frame);
        assert!(seen > 100, "{caption}: {seen} pixels");
    }
}

#[test]
fn the_page_names_the_machine_marks_noise_and_is_drawn_by_a_browser() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("html");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let (path, figures) = measured(&folder);
    let page = fs::read_to_string(&path).unwrap();
    assert_says_what_was_measured(&page, &figures);
    assert_needs_nothing(&page);
    let plots = page.matches("<figure").count();
    assert!(plots >= 2 * TABLES.len(), "{plots}");

    let Some(name) = browser() else {
        // Written past the test harness, which hides the output of a test that passes.
        let skipped = "SKIPPED: no Chromium here, so no browser has opened the page of upoll bench";
        writeln!(io::stderr(), "{skipped}").unwrap();
        return;
    };
    let mut legend = BTreeMap::new();
    for (dark, width) in [(false, DESK), (true, DESK), (false, TELEPHONE)] {
        let browser = Browser {
            name,
            folder: &folder,
            dark,
            width,
        };
        let found = browser.probe(&page);
        assert_eq!(found["plots"].as_array().unwrap().len(), plots);
        assert_eq!(found["width"], width, "the page does not scroll sideways");
        let cut = found["cut"].as_array().unwrap();
        assert!(
            cut.is_empty(),
            "at {width}, tables with hidden columns: {cut:?}"
        );
        let paper = rgb(&found["paper"]);
        assert_eq!(paper.iter().all(|&part| part < 64), dark, "{paper:?}");
        let height = u32::try_from(found["height"].as_u64().unwrap()).unwrap();
        let picture = browser.screenshot(&path, height);
        assert!(
            picture.count(&[paper], [0.0, 0.0, 20.0, 20.0]) >= 400,
            "the paper"
        );
        assert_drawn(&found, &picture);
        for plot in found["plots"].as_array().unwrap() {
            let names = plot["legend"].as_array().unwrap();
            for (thing, swatch) in names.iter().zip(plot["swatches"].as_array().unwrap()) {
                let thing = thing.as_str().unwrap().to_owned();
                let colour = legend
                    .entry((dark, thing.clone()))
                    .or_insert(swatch.clone());
                assert_eq!(colour, swatch, "{thing} has one colour");
            }
        }
    }
    fs::remove_dir_all(folder).unwrap();
}
