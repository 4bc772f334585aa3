/** Bundles src/ into the package: page.js and page.css beside attnworks.reports.page. `--out DIR` for elsewhere. */
import { build } from "esbuild";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const here = fileURLToPath(new URL(".", import.meta.url));
const { values } = parseArgs({ options: { out: { type: "string", default: `${here}../src/attnworks/reports/page` } } });

await build({
  absWorkingDir: here,
  entryPoints: { page: "src/main.tsx" },
  outdir: values.out,
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  charset: "ascii",
  legalComments: "none",
  logLevel: "info",
});
