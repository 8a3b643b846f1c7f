//! Creates the picture of the status page: `bazel run //test/browser:screenshot`.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use browser::{Browser, FakeServer, Files, Screen, Tab};
use status::sample;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", causes::lines(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let workspace =
        env::var_os("BUILD_WORKSPACE_DIRECTORY").ok_or("run it with: bazel run //test/browser:screenshot")?;
    let page = sample::example();
    let html = page.html();
    let served = FakeServer::start(page)?;
    let mut browser = Browser::start(&Files::from_target()?)?;
    let mut tab = Tab::open(&mut browser)?;
    tab.be(Screen::DESK)?;
    tab.visit(&served.url("/statusz"))?;
    let path = Path::new(&workspace).join("docs/statusz.png");
    fs::write(&path, tab.picture()?.of_page(&html).bytes())?;
    println!("{}", path.display());
    Ok(())
}
