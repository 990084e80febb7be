"use strict";
/* The conversations of this browser. A chat is a tree of messages: an edited message and a new answer stand
   beside what they replace, and nothing is lost. `leaf` is the end of the path that is shown.

   chat: { title, nodes: [{ role, content, parent, pictures?, drafted?, facts?, asked? }], leaf } */
const CHAT = "duodec.chat", OTHERS = "duodec.chats";
const ROOT = -1;

const Chats = {
  fresh: () => ({ title: "", nodes: [], leaf: ROOT }),

  /* What was kept, also by versions in which a chat was a list of messages. */
  adopt(found) {
    const arePictures = all => all === undefined || (Array.isArray(all) && all.every(one => typeof one === "string" && one.startsWith("data:image/")));
    const isMessage = m => m && ["user", "assistant"].includes(m.role) && typeof m.content === "string" && arePictures(m.pictures);
    if (Array.isArray(found)) return found.filter(isMessage).reduce((chat, message) => { Chats.add(chat, message); return chat; }, Chats.fresh());
    if (!found || !Array.isArray(found.nodes)) return Chats.fresh();
    const { nodes, leaf } = found;
    const isTree = nodes.every((node, at) => isMessage(node) && Number.isInteger(node.parent) && node.parent >= ROOT && node.parent < at);
    if (!isTree || !Number.isInteger(leaf) || leaf < ROOT || leaf >= nodes.length) return Chats.fresh();
    return { title: String(found.title || ""), nodes, leaf };
  },

  /* A message under the one that is the end now; it becomes the end. */
  add(chat, message) {
    const node = { ...message, parent: chat.leaf };
    chat.leaf = chat.nodes.push(node) - 1;
    return node;
  },
  /* Takes back the last message that was added, which nothing follows. */
  takeBack(chat) { chat.leaf = chat.nodes.pop().parent; },

  /* The places of the messages that are shown, in order. */
  path(chat) {
    const places = [];
    for (let at = chat.leaf; at !== ROOT; at = chat.nodes[at].parent) places.push(at);
    return places.reverse();
  },
  messages: chat => Chats.path(chat).map(at => chat.nodes[at]),
  children: (chat, parent) => chat.nodes.flatMap((node, at) => node.parent === parent ? [at] : []),

  /* Goes to a message and on to the end of its newest branch. */
  show(chat, at) {
    for (let below = [at]; below.length; below = Chats.children(chat, at)) at = below[below.length - 1];
    chat.leaf = at;
  },

  title: chat => chat.title || (chat.nodes.length ? chat.nodes[0].content.slice(0, 60) : "New chat"),
  has: (chat, words) => [chat.title, ...chat.nodes.map(node => node.content)].some(text => text.toLowerCase().includes(words)),
};
