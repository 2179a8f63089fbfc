// A page that is opened from a folder may start no worker. The search, which would be
// one, runs in a frame instead; Material for MkDocs knows such a frame by this name.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "search";
      this.frame.answer = (data) =>
        this.dispatchEvent(new MessageEvent("message", { data }));
      // What a worker posts goes to the page that started it.
      this.frame.srcdoc =
        "<script>postMessage = (data) => frameElement.answer(data)</script>" +
        `<script src="${address}"></script>`;
      this.ready = new Promise((done) => this.frame.addEventListener("load", done));
      document.body.append(this.frame);
    }

    postMessage(data) {
      this.ready.then(() => {
        const { contentWindow } = this.frame;
        contentWindow.dispatchEvent(new contentWindow.MessageEvent("message", { data }));
      });
    }
  };
}
