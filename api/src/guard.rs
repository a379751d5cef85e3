//! Who may speak to the API: checks before any handler runs.
//!
//! The API listens on this machine, where every web page that the user opens can send requests to it. Against those:
//!
//! * `Host` must be one of ours ([`Hosts`]), so a name that was rebound to 127.0.0.1 gets nothing;
//! * `Origin`, where there is one, must be the page's own or one that the operator named (`cors.rs`), and `Sec-Fetch-Site`
//!   `same-origin` or `none` otherwise;
//! * every route but the page, `/healthz` and `/readyz` wants a secret in a header ([`Access`]), which no other page can know and no
//!   browser sends by itself: there are no cookies;
//! * no answer allows an origin that was not named anything, and bodies are JSON by their declared type.
//!
//! Secrets are compared in constant time. The page gets one through a *ticket*, good once, in the fragment of the address
//! that `shoal serve` prints: fragments are not sent to servers and the page removes it at once.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    Json,
    extract::{Request, State},
    http::{HeaderMap, header},
    middleware::Next,
    response::Response,
};
use serde_json::{Value, json};
use subtle::{Choice, ConstantTimeEq};

use crate::{
    App,
    body::{Authorized, TicketBody},
    cors::{self, Origins},
    error::{ApiError, Kind},
    fields::{Fields, required},
    keys::{self, Keys},
    names,
};

/// A token, a few names: an honest request has 2 KiB.
pub(crate) const MAX_HEADER_BYTES: usize = 64 << 10;
/// Tabs that hold a token of their own; the oldest is forgotten for a new one.
const MAX_TABS: usize = 64;

/// Names under which the API may be addressed, as they stand in `Host`: lower case, with the port.
#[derive(Clone, Debug)]
pub(crate) struct Hosts(Vec<String>);

impl Hosts {
    /// The names of a loopback listener, the address it listens on, and what the user added.
    pub(crate) fn new(listen: SocketAddr, more: &[String]) -> Self {
        let port = listen.port();
        let mut names: Vec<String> = ["127.0.0.1", "[::1]", "localhost"].map(str::to_owned).into();
        if !listen.ip().is_unspecified() {
            names.push(match listen.ip() {
                IpAddr::V4(ip) => ip.to_string(),
                IpAddr::V6(ip) => format!("[{ip}]"),
            });
        }
        let mut hosts: Vec<String> = names.iter().map(|name| format!("{name}:{port}")).collect();
        if port == 80 {
            hosts.extend(names);
        }
        for name in more {
            let name = name.to_ascii_lowercase();
            // Behind a proxy on its own port the name comes without ours.
            hosts.push(format!("{name}:{port}"));
            hosts.push(name);
        }
        Self(hosts)
    }

    /// Whether `host` is one of ours. Names are compared without regard to case, and nothing else is forgiven: no
    /// trailing dot, no user part, no other spelling of an address.
    pub(crate) fn allow(&self, host: &str) -> bool {
        self.0.iter().any(|ours| ours.eq_ignore_ascii_case(host))
    }
}

/// The one value of a header; an error when it is there twice or is no text.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else { return Ok(None) };
    let text = first.to_str().ok().filter(|_| values.next().is_none());
    text.map(Some).ok_or_else(|| {
        ApiError::new(Kind::Invalid, format!("the header `{name}` is malformed or there twice"))
    })
}

/// Checks where a request says it goes and comes from; whether it comes from an origin that the operator named.
fn origin(hosts: &Hosts, origins: &Origins, request: &Request) -> Result<bool, ApiError> {
    let refuse = |why: &str| Err(ApiError::new(Kind::Forbidden, why));
    let others = "requests from other web pages are refused; --allow-origin lets those of one origin ask";
    let headers = request.headers();
    let host = single(headers, "host")?;
    let target = request.uri().authority().map(|authority| authority.as_str());
    let Some(host) = host else { return refuse("the request has no Host header") };
    if !hosts.allow(host) || target.is_some_and(|target| !hosts.allow(target)) {
        return refuse(
            "this Host is not served here; use the address that `shoal serve` printed, or add the name with --allow-host",
        );
    }
    if let Some(origin) = single(headers, "origin")? {
        if origins.allow(origin) {
            return Ok(true);
        }
        let place = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        if !place.is_some_and(|place| place.eq_ignore_ascii_case(host)) {
            return refuse(others);
        }
    }
    match single(headers, "sec-fetch-site")? {
        None | Some("same-origin" | "none") => Ok(false),
        // The user may follow a link to the page; the page shows nothing of theirs without the token.
        Some(_) if navigates_to_page(request) => Ok(false),
        Some(_) => refuse(others),
    }
}

fn navigates_to_page(request: &Request) -> bool {
    let is = |name: &str, value: &str| {
        request.headers().get(name).is_some_and(|v| v.as_bytes() == value.as_bytes())
    };
    request.method() == axum::http::Method::GET
        && request.uri().path() == "/"
        && is("sec-fetch-mode", "navigate")
        && is("sec-fetch-dest", "document")
}

/// Around every route, known or not.
pub(crate) async fn places(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let bytes: usize = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if bytes > MAX_HEADER_BYTES {
        return Err(ApiError::new(
            Kind::TooLarge,
            format!("the headers have more than {} KiB", MAX_HEADER_BYTES >> 10),
        ));
    }
    if !origin(&app.hosts, &app.origins, &request)? {
        return Ok(next.run(request).await);
    }
    let from = request.headers().get(header::ORIGIN).cloned();
    let mut response = match cors::is_preflight(&request) {
        true => cors::preflight(request.headers()),
        false => next.run(request).await,
    };
    if let Some(from) = from {
        cors::readable(response.headers_mut(), &from);
    }
    Ok(response)
}

/// Around the routes that want the token. It is checked before the body is read.
pub(crate) async fn access(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let holder = app.access.check(request.headers(), app.keys.as_ref())?;
    if holder.is_some() && !keys::open_to_holders(request.uri().path()) {
        return Err(ApiError::new(
            Kind::Forbidden,
            "this key may ask for answers, and for nothing else here",
        ));
    }
    if app.access.token.is_some() {
        request.extensions_mut().insert(Authorized);
    }
    Ok(keys::asked_by(holder, next.run(request)).await)
}

/// The secrets that open the API.
#[derive(Debug)]
pub(crate) struct Access {
    token: Option<String>,
    tickets: Mutex<Vec<String>>,
    tabs: Mutex<Vec<String>>,
}

impl Access {
    /// Access with `token`; without one everything is open, which the caller allows on loopback only.
    pub(crate) fn new(token: Option<String>) -> Self {
        Self { token, tickets: Mutex::default(), tabs: Mutex::default() }
    }

    /// Whether everything is open.
    pub(crate) fn is_open(&self) -> bool {
        self.token.is_none()
    }

    /// A ticket that opens the page once.
    pub(crate) fn ticket(&self) -> String {
        let ticket = names::random_hex(16);
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        keep(&mut tickets, ticket.clone());
        ticket
    }

    /// Lets the owner in, and the holder of a key: then his name is the result.
    fn check(&self, headers: &HeaderMap, keys: Option<&Arc<dyn Keys>>) -> Result<Option<String>, ApiError> {
        let Some(token) = &self.token else { return Ok(None) };
        let refuse = |why: &str| Err(ApiError::new(Kind::Unauthorized, why));
        let bearer = single(headers, "authorization")?;
        let bearer = bearer.and_then(|value| {
            let (scheme, secret) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
        });
        // Anthropic's clients send the key so.
        let Some(secret) = bearer.or(single(headers, "x-api-key")?) else {
            return refuse(
                "the header `Authorization: Bearer TOKEN` is missing; `shoal serve` says where the token is",
            );
        };
        // The lock ends here: to look for a key may take a look at its file.
        let tab = {
            let tabs = self.tabs.lock().unwrap_or_else(PoisonError::into_inner);
            tabs.iter().fold(Choice::from(0), |any, tab| any | equal(tab, secret))
        };
        if (equal(token, secret) | tab).into() {
            return Ok(None);
        }
        match keys.and_then(|keys| keys.holder(secret)) {
            Some(name) => Ok(Some(name)),
            None => refuse("the token is not the right one"),
        }
    }

    /// Takes a ticket for a token of the tab that brought it.
    fn redeem(&self, ticket: &str) -> Option<String> {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let at = tickets.iter().position(|known| bool::from(equal(known, ticket)))?;
        tickets.remove(at);
        let tab = names::random_hex(32);
        keep(&mut self.tabs.lock().unwrap_or_else(PoisonError::into_inner), tab.clone());
        Some(tab)
    }
}

fn equal(ours: &str, theirs: &str) -> Choice {
    ours.as_bytes().ct_eq(theirs.as_bytes())
}

fn keep(list: &mut Vec<String>, secret: String) {
    if list.len() == MAX_TABS {
        list.remove(0);
    }
    list.push(secret);
}

/// `POST /session`: `{"ticket": "..."}` becomes `{"token": "..."}`, once.
pub(crate) async fn session(
    State(app): State<Arc<App>>,
    TicketBody(body): TicketBody,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::new(&body)?;
    let ticket = required(&fields, "ticket", fields.text("ticket")?)?;
    let token = app.access.redeem(ticket);
    let used = || {
        ApiError::new(
            Kind::Unauthorized,
            "this link was used already; enter the token, or restart `shoal serve`",
        )
    };
    Ok(Json(json!({"token": token.ok_or_else(used)?})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_names_are_hosts() {
        let hosts = Hosts::new(([127, 0, 0, 1], 8080).into(), &["Shoal.Example".into()]);
        for host in [
            "127.0.0.1:8080",
            "localhost:8080",
            "LocalHost:8080",
            "[::1]:8080",
            "shoal.example",
            "shoal.example:8080",
        ] {
            assert!(hosts.allow(host), "{host}");
        }
        for host in [
            "",
            "127.0.0.1",
            "localhost",
            "127.0.0.1:80",
            "0.0.0.0:8080",
            "localhost.:8080",
            "127.1:8080",
            "2130706433:8080",
            "0x7f.0.0.1:8080",
            "user@127.0.0.1:8080",
            "127.0.0.1:8080.evil.example",
            "evil.example:8080",
            "[::ffff:127.0.0.1]:8080",
            "[::]:8080",
            "127.0.0.1:08080",
            " 127.0.0.1:8080",
        ] {
            assert!(!hosts.allow(host), "{host}");
        }
    }

    #[test]
    fn a_ticket_is_good_once_and_its_token_opens() {
        let access = Access::new(Some("secret".into()));
        let ticket = access.ticket();
        let tab = access.redeem(&ticket).unwrap();
        assert!(access.redeem(&ticket).is_none());
        let with = |value: String| {
            let mut headers = HeaderMap::new();
            headers.insert(axum::http::header::AUTHORIZATION, value.parse().unwrap());
            access.check(&headers, None)
        };
        assert!(with(format!("Bearer {tab}")).is_ok());
        assert!(with("bearer secret".into()).is_ok());
        for wrong in [
            "Bearer ",
            "Bearer secre",
            "Bearer secrets",
            "Basic secret",
            "secret",
            &format!("Bearer {ticket}"),
        ] {
            assert!(with(wrong.to_owned()).is_err(), "{wrong}");
        }
        assert!(access.check(&HeaderMap::new(), None).is_err());
    }

    #[test]
    fn tabs_are_bounded() {
        let access = Access::new(Some("secret".into()));
        for _ in 0..MAX_TABS + 5 {
            let ticket = access.ticket();
            assert!(access.redeem(&ticket).is_some());
        }
        assert_eq!(access.tabs.lock().unwrap().len(), MAX_TABS);
    }
}
