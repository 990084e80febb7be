"use strict";
/* The pictures of the message that is being written: attached or pasted, made smaller where they are large, and sent as data URIs. */
const MOST_PICTURE = 300_000;  // bytes: a larger one is made smaller, for what the browser keeps
const PICTURE_SIDE_PX = 1280, PICTURE_QUALITY = 0.85, BYTES_A_CALL = 0x2000;

const Pictures = {
  waiting: [],  // data URIs, until the message is sent
  canSee: false,  // whether the model does

  isOne: file => file.type.startsWith("image/"),
  async add(file) {
    if (!Pictures.canSee) throw new Error("not seen");
    const uri = await Pictures.uri(file);
    Pictures.put([...Pictures.waiting, uri]);
  },
  /* Shows these; each can be taken out again. */
  put(uris) {
    Pictures.waiting = uris;
    const box = document.getElementById("pictures");
    box.hidden = !uris.length;
    box.replaceChildren(...uris.map((uri, at) => {
      const taken = document.createElement("button");
      taken.setAttribute("type", "button");
      taken.setAttribute("aria-label", "take picture " + (at + 1) + " out");
      taken.className = "quiet";
      taken.append(Pictures.image(uri, ""));
      taken.addEventListener("click", () => Pictures.put(Pictures.waiting.filter((_, other) => other !== at)));
      return taken;
    }));
  },
  take() { const found = Pictures.waiting; Pictures.put([]); return found; },

  image(uri, words) {
    const node = document.createElement("img");
    node.setAttribute("src", uri);
    node.setAttribute("alt", words);
    return node;
  },
  /* A message's content as the server reads it. */
  content: ({ content, pictures }) => !pictures?.length ? content
    : [...pictures.map(url => ({ type: "image_url", image_url: { url } })), { type: "text", text: content }],

  async uri(file) {
    if (file.size > MOST_PICTURE) return Pictures.smaller(file);
    const bytes = new Uint8Array(await file.arrayBuffer());
    let words = "";
    for (let at = 0; at < bytes.length; at += BYTES_A_CALL) words += String.fromCharCode(...bytes.subarray(at, at + BYTES_A_CALL));
    return "data:" + file.type + ";base64," + btoa(words);
  },
  async smaller(file) {
    const whole = await createImageBitmap(file), canvas = document.createElement("canvas");
    const scale = Math.min(1, PICTURE_SIDE_PX / Math.max(whole.width, whole.height));
    canvas.width = Math.max(1, Math.round(whole.width * scale));
    canvas.height = Math.max(1, Math.round(whole.height * scale));
    const pen = canvas.getContext("2d");
    pen.fillStyle = "white";
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(whole, 0, 0, canvas.width, canvas.height);
    return canvas.toDataURL("image/jpeg", PICTURE_QUALITY);
  },
};
