//! A page in the browser.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::browser::Browser;
use crate::connection::Error;
use crate::look::{LOOK, Look};
use crate::picture::Picture;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Light,
    Dark,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    Screen,
    Print,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Screen {
    pub width: u32,
    pub height: u32,
    pub scheme: Scheme,
    pub media: Media,
}

impl Screen {
    pub const DESK: Self = Self { width: 1280, height: 800, scheme: Scheme::Light, media: Media::Screen };
    pub const HAND: Self = Self { width: 390, height: 844, ..Self::DESK };
    /// A4 at 96 dots per inch, without the browser's margins.
    pub const PAPER: Self = Self { width: 718, height: 1047, media: Media::Print, ..Self::DESK };

    pub const fn dark(self) -> Self {
        Self { scheme: Scheme::Dark, ..self }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Landmark {
    /// ARIA role: `main`, `table`.
    pub role: String,
    pub name: String,
}

/// A page in a browser with JavaScript disabled.
pub struct Tab<'browser> {
    browser: &'browser mut Browser,
    session: String,
}

impl<'browser> Tab<'browser> {
    pub fn open(browser: &'browser mut Browser) -> Result<Self, Error> {
        let target = browser.call(None, "Target.createTarget", json!({"url": "about:blank"}))?;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call(None, "Target.attachToTarget", attach)?;
        let session = field(&attached, "Target.attachToTarget", "sessionId")?;
        let mut tab = Self { browser, session };
        for domain in ["Page", "Runtime", "Log", "Network", "Audits"] {
            tab.call(&format!("{domain}.enable"), json!({}))?;
        }
        tab.call("Emulation.setScriptExecutionDisabled", json!({"value": true}))?;
        Ok(tab)
    }

    pub fn be(&mut self, screen: Screen) -> Result<(), Error> {
        let Screen { width, height, scheme, media } = screen;
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", size)?;
        let scheme = match scheme {
            Scheme::Light => "light",
            Scheme::Dark => "dark",
        };
        let media = match media {
            Media::Screen => "screen",
            Media::Print => "print",
        };
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"media": media, "features": features}))?;
        Ok(())
    }

    /// Loads a page, and returns when it is complete. Drops earlier events.
    pub fn visit(&mut self, url: &str) -> Result<(), Error> {
        self.browser.events();
        let answer = self.call("Page.navigate", json!({"url": url}))?;
        if answer.get("errorText").is_some() {
            return Err(Error::Refused { request: format!("to visit {url}"), answer });
        }
        self.browser.wait("Page.loadEventFired")
    }

    /// Requests of the page, and errors that the browser reported.
    pub fn happened(&mut self) -> (Vec<String>, Vec<String>) {
        let (mut requests, mut complaints) = (Vec::new(), Vec::new());
        for event in self.browser.events() {
            match &*event.name {
                "Network.requestWillBeSent" => {
                    requests.push(event.facts["request"]["url"].as_str().unwrap_or_default().to_owned());
                }
                "Log.entryAdded" | "Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Audits.issueAdded" => {
                    complaints.push(event.facts.to_string());
                }
                _ => {}
            }
        }
        (requests, complaints)
    }

    pub fn look(&mut self) -> Result<Look, Error> {
        self.evaluate(LOOK)
    }

    /// Value of an expression on the page. JavaScript of the page itself stays disabled.
    pub fn evaluate<T: DeserializeOwned>(&mut self, expression: &str) -> Result<T, Error> {
        let request = "Runtime.evaluate";
        let mut answer = self.call(request, json!({"expression": expression, "returnByValue": true}))?;
        if answer.get("exceptionDetails").is_some() {
            return Err(Error::Refused { request: expression.to_owned(), answer });
        }
        let value = answer["result"]["value"].take();
        T::deserialize(value).map_err(|source| Error::Answer { request: expression.to_owned(), source })
    }

    pub fn press(&mut self, key: &str) -> Result<(), Error> {
        let (code, text) = if key == "Enter" { (13, "\r") } else { (9, "") };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = text.into();
            }
            self.call("Input.dispatchKeyEvent", event)?;
        }
        Ok(())
    }

    pub fn arrives(&mut self) -> Result<(), Error> {
        self.browser.wait("Page.loadEventFired")
    }

    pub fn landmarks(&mut self) -> Result<Vec<Landmark>, Error> {
        #[derive(Deserialize)]
        struct Tree {
            nodes: Vec<Node>,
        }
        #[derive(Deserialize)]
        struct Node {
            ignored: bool,
            role: Option<Named>,
            name: Option<Named>,
        }
        #[derive(Deserialize)]
        struct Named {
            #[serde(default)]
            value: Value,
        }
        let request = "Accessibility.getFullAXTree";
        let answer = self.call(request, json!({}))?;
        let tree = Tree::deserialize(answer).map_err(|source| Error::Answer { request: request.into(), source })?;
        let text =
            |named: Option<Named>| named.and_then(|named| named.value.as_str().map(str::to_owned)).unwrap_or_default();
        let seen = tree.nodes.into_iter().filter(|node| !node.ignored);
        Ok(seen.map(|node| Landmark { role: text(node.role), name: text(node.name) }).collect())
    }

    pub fn picture(&mut self) -> Result<Picture, Error> {
        let [width, height]: [u32; 2] =
            self.evaluate("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")?;
        let clip = json!({"x": 0, "y": 0, "width": width, "height": height, "scale": 1});
        let request = "Page.captureScreenshot";
        let answer = self.call(request, json!({"format": "png", "captureBeyondViewport": true, "clip": clip}))?;
        let png = BASE64_STANDARD.decode(field(&answer, request, "data")?)?;
        Picture::new(png).ok_or_else(|| Error::Refused { request: request.to_owned(), answer })
    }

    fn call(&mut self, request: &str, parameters: Value) -> Result<Value, Error> {
        self.browser.call(Some(&self.session), request, parameters)
    }
}

fn field(answer: &Value, request: &str, name: &str) -> Result<String, Error> {
    String::deserialize(&answer[name]).map_err(|source| Error::Answer { request: request.to_owned(), source })
}
