/** Large numbers of the page: gzip, base64, and decoded when they are first asked for. */
import type { Coding, Pin, Slot } from "./contract";
import type { HeadName } from "./readings";
import { slotName } from "./readings";

const given = new Map<string, string>();
const decoded = new Map<string, Promise<Uint8Array>>();
const MOST_DECODED = 64;

/** Blobs of a live answer take the place of those of the answer before. */
export function addBlobs(blobs: Record<string, string>): void {
  for (const [name, text] of Object.entries(blobs)) {
    given.set(name, text);
    decoded.delete(name);
  }
}

export function dropBlobs(names: Iterable<string>): void {
  for (const name of names) {
    given.delete(name);
    decoded.delete(name);
  }
}

/** As it stands in a file. */
export function blobText(blob: string): string {
  return (given.get(blob) ?? document.getElementById(`blob-${blob}`)?.textContent ?? "").trim();
}

export function bytesOf(blob: string): Promise<Uint8Array> {
  let bytes = decoded.get(blob);
  if (bytes === undefined) {
    bytes = unpack(blobText(blob));
    decoded.set(blob, bytes);
    bytes.catch(() => decoded.delete(blob));
    const oldest = decoded.keys().next();
    if (decoded.size > MOST_DECODED && !oldest.done) decoded.delete(oldest.value);
  }
  return bytes;
}

/** base64 of gzip, to bytes. */
export async function unpack(text: string): Promise<Uint8Array> {
  const packed = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Maps ------------------------------------------------------------------------------------------------------------------

export function slotOf(pin: Pin, head: HeadName): Slot | null {
  return pin.slots.find((slot) => slot.name === slotName(head.kind, head.layer)) ?? null;
}

/** The weights of a head, row after row; null where only the thumbnail was kept. */
export async function mapOf(pin: Pin, head: HeadName): Promise<Float32Array | null> {
  const slot = slotOf(pin, head);
  return slot === null ? null : heldMap(slot, slot.blob, head.head);
}

/** The nearest map of the head's structured form. */
export async function fitOf(pin: Pin, head: HeadName): Promise<Float32Array | null> {
  const slot = slotOf(pin, head);
  return slot === null ? null : heldMap(slot, slot.fits?.blob ?? null, head.head);
}

async function heldMap(slot: Slot, blob: string | null, head: number): Promise<Float32Array | null> {
  const place = slot.held.indexOf(head);
  if (blob === null || place < 0) return null;
  const size = slot.rows * slot.columns;
  return weights(await bytesOf(blob), slot.coding, place * size, size);
}

export interface Thumbnail {
  rows: number;
  columns: number;
  /** From 0 to 255, the square root of the weight. */
  levels: Uint8Array;
}

/** The small pictures of all heads, by name. */
export async function thumbnailsOf(pin: Pin): Promise<Map<string, Thumbnail>> {
  const bytes = await bytesOf(pin.thumbnails);
  const pictures = new Map<string, Thumbnail>();
  let at = 0;
  for (const slot of pin.slots) {
    const [rows, columns] = slot.thumb;
    for (let head = 0; head < slot.heads; head++, at += rows * columns) {
      pictures.set(`${slot.name}.${head}`, { rows, columns, levels: bytes.subarray(at, at + rows * columns) });
    }
  }
  return pictures;
}

function weights(bytes: Uint8Array, coding: Coding, start: number, size: number): Float32Array {
  const numbers = new Float32Array(size);
  if (coding.type === "uint8") {
    const table = Float32Array.from({ length: 256 }, (_, q) => (q / coding.levels) ** 2);
    for (let i = 0; i < size; i++) numbers[i] = table[bytes[start + i] ?? 0] ?? 0;
  } else {
    const view = new DataView(bytes.buffer, bytes.byteOffset);
    for (let i = 0; i < size; i++) numbers[i] = fromHalf(view.getUint16(2 * (start + i), true));
  }
  return numbers;
}

function fromHalf(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
