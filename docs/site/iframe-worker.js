// Search in pages that were opened as files. Browsers start no worker from file://, so the script of
// the worker is loaded into a hidden frame instead, which has the same origin as the page.
if (location.protocol === "file:") {
  // A message is a copy, and comes after what is under way.
  const later = (data, deliver) => {
    const copy = structuredClone(data);
    setTimeout(() => deliver(new MessageEvent("message", { data: copy })));
  };

  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      // What a worker has and a window has not, or has otherwise.
      inside.postMessage = (data) => later(data, (event) => {
        this.dispatchEvent(event);
        this.onmessage?.(event);
      });
      inside.importScripts = (...scripts) =>
        scripts.reduce((before, each) => before.then(() => this.load(each)), Promise.resolve());
      this.ready = this.load(url);
    }

    load(url) {
      return new Promise((loaded, failed) => {
        const script = this.frame.contentDocument.createElement("script");
        Object.assign(script, { src: url, onload: loaded, onerror: failed });
        this.frame.contentDocument.body.append(script);
      });
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.ready.then(() => later(data, (event) => inside.dispatchEvent(event)));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
