// xterm writes <style> elements of its own. The page's policy admits those with its nonce; this gives it to each one
// when it is made, before xterm is loaded.

(() => {
  const { styleNonce } = document.currentScript.dataset;
  const make = Document.prototype.createElement;
  Document.prototype.createElement = function createElement(name, ...more) {
    const el = make.call(this, name, ...more);
    if (String(name).toLowerCase() === "style") el.nonce = styleNonce;
    return el;
  };
  document.currentScript.removeAttribute("data-style-nonce");
})();
