package config
import ("testing";"fmt";"os";"path/filepath";"strings";"bufio")
func TestZZ(t *testing.T){
 f,_:=os.Create("/tmp/ours.out"); w:=bufio.NewWriter(f); defer w.Flush()
 names,_:=filepath.Glob("/tmp/diff/*.yaml")
 for _,n:=range names { b,_:=os.ReadFile(n); _,p:=Compile([]File{{filepath.Base(n),b}},Options{})
  var m []string; for _,x:=range p { if !x.Warning { m=append(m,fmt.Sprintf("%d:%d %s",x.Line,x.Column,x.Message)) } }
  fmt.Fprintf(w,"%s\t%s\n",filepath.Base(n),strings.ReplaceAll(strings.Join(m," | "),"\n"," "))}
}
